"""CLIP models for rewards, from a folder, a hub id or `random-tiny:clip`.

Only tensors are read: safetensors, or a pickled checkpoint (.bin, .pt) that is converted once, with `weights_only`, in
the cache folder. Code of a repository never runs. torch and transformers are imported when a model is loaded.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from spotlight.core.errors import EnvironmentProblem, WeightsError

TINY = "random-tiny:clip"
HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
SETTINGS = ["*.json", "*.txt"]
SAFETENSORS, PICKLED = "model*.safetensors", "pytorch_model*.bin"
PROCESSOR = "preprocessor_config.json"
TOKENIZERS = ("tokenizer.json", "vocab.json")
"""Files of a tokenizer; one of them is there."""


@dataclass(frozen=True)
class ClipParts:
    """A CLIPModel in fp32 on the CPU, its tokenizer, and its image processor in the form that needs Pillow only."""

    model: Any
    tokenizer: Any
    processor: Any


def load_clip(source: str, tokenizer: str = "") -> ClipParts:
    """Load a model; `tokenizer` is a folder or hub id with the tokenizer, for a source that has none of its own."""
    import transformers
    from safetensors import SafetensorError

    if source == TINY:
        return _tiny()
    folder = _fetched(source, [*SETTINGS, SAFETENSORS])
    if not any(folder.glob(SAFETENSORS)) and not Path(source).expanduser().is_dir():
        folder = _fetched(source, [*SETTINGS, PICKLED])
    texts = folder if _has_tokenizer(folder) or not tokenizer else _fetched(tokenizer, SETTINGS)
    if not _has_tokenizer(texts):
        raise WeightsError(
            f"the CLIP model '{source}' has no tokenizer ({' or '.join(TOKENIZERS)}), so it cannot read prompts; fetch "
            "the whole model."
        )
    hub: Any = transformers
    try:
        model = _model(folder)
        words = hub.CLIPTokenizer.from_pretrained(texts)
        settings = next((each for each in (folder, texts) if (each / PROCESSOR).is_file()), None)
        processor = hub.CLIPImageProcessorPil.from_pretrained(settings) if settings else _processor(model)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;: ")
        raise WeightsError(
            f"no CLIP model can be loaded from '{source}' ({reason}), because files are missing, damaged or another "
            "model's; fetch it again."
        ) from error
    return ClipParts(model, words, processor)


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZERS)


def _fetched(source: str, patterns: list[str]) -> Path:
    """An existing folder, or the local copy of these files of a hub id."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return folder
    if HUB_ID.fullmatch(source) is None:
        raise WeightsError(
            f"there is no CLIP model at '{source}', because it is neither a folder nor a hub id (owner/name) "
            f"nor {TINY}; name one of them."
        )
    try:
        return Path(snapshot_download(source, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise WeightsError(
            f"the hub has no model '{source}', or it is private or gated; check the name, or log in to the hub."
        ) from error
    except OSError as error:
        raise EnvironmentProblem(
            f"the model '{source}' cannot be fetched ({str(error).splitlines()[0]}) and is not in this machine's "
            "cache; connect to the hub, or name a folder."
        ) from error


def _model(folder: Path) -> Any:
    """Load the weights; transformers only warns about missing tensors and leaves them random."""
    import torch
    import transformers

    hub: Any = transformers
    weights = folder if any(folder.glob(SAFETENSORS)) else _converted(folder)
    model, report = hub.CLIPModel.from_pretrained(
        weights,
        config=hub.CLIPConfig.from_pretrained(folder),
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
    )
    absent = sorted(str(key) for key in (*report["missing_keys"], *report["mismatched_keys"]))
    if absent:
        raise ValueError(f"{len(absent)} tensors do not fit its config, first {absent[0]}")
    return model.eval().requires_grad_(False)


def _converted(folder: Path) -> Path:
    """The folder, in the cache, of the checkpoint's tensors as safetensors; written once for each content."""
    from safetensors.torch import save_file

    others = list(folder.glob("*.pt"))
    files = sorted(folder.glob(PICKLED)) or (others if len(others) == 1 else [])
    if not files:
        raise ValueError("no model.safetensors, pytorch_model.bin or single .pt file")
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        with file.open("rb") as content:
            hasher.update(hashlib.file_digest(content, "blake2b").digest())
    target = _cache() / "converted" / hasher.hexdigest()
    if not any(target.glob(SAFETENSORS)):
        tensors = {name: tensor for file in files for name, tensor in _tensors(file).items()}
        target.mkdir(parents=True, exist_ok=True)
        # Several reward processes may convert at once; each renames a whole file.
        unfinished = target / f"{os.getpid()}.unfinished"
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, unfinished, metadata={"format": "pt"})
        unfinished.replace(target / "model.safetensors")
    return target


def _tensors(file: Path) -> Mapping[str, Any]:
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (UnpicklingError, EOFError) as error:
        raise WeightsError(
            f"the checkpoint {file} is damaged or contains more than tensors, which could run code when it is loaded; "
            "use a checkpoint in safetensors form."
        ) from error
    tensors = content.get("state_dict", content) if isinstance(content, dict) else {}
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise WeightsError(
            f"the checkpoint {file} is no table of named tensors, so it is not the weights of a model; use the file "
            "that save_pretrained wrote."
        )
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spotlight"


def _processor(model: Any) -> Any:
    """OpenAI's colours, at the size of the model's images."""
    from transformers import CLIPImageProcessorPil

    side = model.config.vision_config.image_size
    return CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})


def _tiny() -> ClipParts:
    """A small CLIP with random weights and a token per byte; the same numbers in every process."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(f"{byte}</w>" for byte in alphabet), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[])
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": len(pieces), "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = CLIPConfig(
        text_config={**layers, **tokens, "pad_token_id": tokenizer.pad_token_id},
        vision_config={**layers, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        model = CLIPModel(config).eval().requires_grad_(False)
    return ClipParts(model, tokenizer, _processor(model))
