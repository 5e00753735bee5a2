"""Small tokenizers of models with random weights, with the conventions of the released ones; free of torch."""

import json
import string
from collections.abc import Callable
from typing import Any

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from spotlight.compute.models.family_registry import Family

# The public names of transformers are dummies to a type checker.
hub: Any = transformers
LETTERS = string.ascii_lowercase
CLIP_WIDTH = 77


def random_tokenizers(family: Family) -> dict[str, Any]:
    """Components of the text half, without the encoders."""
    return {
        folder: TOKENIZERS[name](family) if folder.startswith("tokenizer") else None
        for folder, name in family.text.items()
    }


def _qwen_tokenizer(family: Family) -> Any:
    """Byte-level BPE of the template's words, so its prefix has 34 tokens, as in the real vocabulary."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = hub.Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        min_frequency=1,
        show_progress=False,
    )
    bpe.train_from_iterator([family.prompt_template], trainer)
    learned = json.loads(bpe.to_str())["model"]
    tokenizer = hub.Qwen2Tokenizer(vocab=learned["vocab"], merges=[tuple(merge) for merge in learned["merges"]])
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    return tokenizer


def _clip_tokenizer(family: Family) -> Any:
    """Bytes and pairs of letters, so that a token holds two letters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, second + end) for end in ("", "</w>") for first in LETTERS for second in LETTERS]
    pieces = [*alphabet, *(f"{byte}</w>" for byte in alphabet), *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    return hub.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=CLIP_WIDTH)


def _t5_tokenizer(family: Family) -> Any:
    """Printable characters and pairs of letters; any other character is unknown."""
    singles = [character for character in string.printable if not character.isspace()]
    pairs = [first + second for first in f"▁{LETTERS}" for second in LETTERS]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(single, -3.0) for single in singles] + [(pair, -4.0) for pair in pairs]
    return hub.T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=family.longest_prompt)


TOKENIZERS: dict[str, Callable[[Family], Any]] = {
    "Qwen2Tokenizer": _qwen_tokenizer,
    "CLIPTokenizer": _clip_tokenizer,
    "T5TokenizerFast": _t5_tokenizer,
}
