"""CLIP score and PickScore, by tiny random models in local folders."""

import json
import os
import pickle
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPModel, CLIPProcessor

from spotlight.compute.rewards.clip import clip
from spotlight.compute.rewards.clip_source import TINY, load_clip
from spotlight.compute.rewards.pickscore import TOKENIZER, pickscore
from spotlight.compute.rewards.protocol import UsesDevice
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.types import Prompt

PROMPTS = [Prompt(text=text) for text in ("a cat", "a dog on a long red sofa", "a cat", 'the word "hat"')]
IMAGES = [
    np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    for seed, size in enumerate([(32, 96, 3), (64, 64, 3), (50, 40, 3), (200, 300, 3)])
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model in the layout of the hub."""
    parts = load_clip(TINY)
    for part in (parts.model, parts.tokenizer, parts.processor):
        part.save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pickled(folder: Path, name: str = "pytorch_model.bin", key: str | None = None) -> Path:
    """Put the weights into a pickled checkpoint instead, under a key where one is given."""
    weights = folder / "model.safetensors"
    content = load_file(weights)
    torch.save({key: content, "step": 3} if key else content, folder / name)
    weights.unlink()
    return folder


def logits_of_the_library(folder: Path) -> tuple[np.ndarray, float]:
    """Logits of transformers' own forward with its own processor, picture by picture, and their scale."""
    model, processor = CLIPModel.from_pretrained(folder).eval(), CLIPProcessor.from_pretrained(folder, backend="pil")
    logits = []
    with torch.no_grad():
        for image, prompt in zip(IMAGES, PROMPTS, strict=True):
            inputs = processor(text=[prompt.text], images=image, padding=True, truncation=True, return_tensors="pt")
            logits.append(model(**inputs).logits_per_image.item())
    return np.array(logits), model.logit_scale.exp().item()


def test_scores_are_those_of_the_librarys_own_forward(folder):
    logits, scale = logits_of_the_library(folder)
    assert np.ptp(logits) > 0.1
    np.testing.assert_allclose(clip(source=str(folder)).score(IMAGES, PROMPTS).total, logits / scale, atol=1e-5)
    np.testing.assert_allclose(pickscore(source=str(folder)).score(IMAGES, PROMPTS).total, logits / 26, atol=1e-5)


def test_score_has_the_same_bits_beside_any_other_picture():
    reward = clip(source=TINY)
    together = reward.score(IMAGES, PROMPTS).total
    alone = [reward.score([image], [prompt]).total[0] for image, prompt in zip(IMAGES, PROMPTS, strict=True)]
    assert together.tolist() == alone
    assert reward.score([], []).total.shape == (0,)


def test_batches_of_a_gpu_give_the_same_scores_in_order(monkeypatch):
    alone = clip(source=TINY).score(IMAGES, PROMPTS).total
    monkeypatch.setattr("spotlight.compute.rewards.clip.CPU_ROWS", 3)
    np.testing.assert_allclose(clip(source=TINY).score(IMAGES, PROMPTS).total, alone, atol=1e-6)


def test_prompt_beyond_the_encoders_length_is_cut():
    reward, image = clip(source=TINY), IMAGES[:1]
    scores = [reward.score(image, [Prompt(text="a" * 100 + end)]).total[0] for end in ("", " cat", " dog")]
    assert len(set(scores)) == 1
    assert reward.score(image, [Prompt(text="a" * 50)]).total[0] != scores[0]


def test_random_source_gives_the_same_model_every_time_and_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    first, second = clip(source=TINY), clip(source=TINY)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.version == second.version
    assert first.score(IMAGES, PROMPTS).total.tolist() == second.score(IMAGES, PROMPTS).total.tolist()


def test_version_changes_with_the_weights_the_preprocessing_and_the_kind_of_score(folder):
    versions = [clip(source=str(folder)).version, pickscore(source=str(folder)).version]
    settings = folder / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"image_mean": [0.5, 0.5, 0.5]}))
    versions.append(clip(source=str(folder)).version)
    weights = load_file(folder / "model.safetensors")
    weights["text_projection.weight"][0, 0] += 1e-6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    versions.append(clip(source=str(folder)).version)
    assert len(set(versions)) == 4


def test_device_is_used_and_named_in_the_version():
    reward = clip(source=TINY)
    reference = reward.version
    assert isinstance(reward, UsesDevice)
    reward.use_device("meta")
    assert reward.version == f"{reference}-meta"
    with pytest.raises(RuntimeError, match="meta"):
        # Tensors of this device have no numbers.
        reward.score(IMAGES, PROMPTS)


@pytest.mark.parametrize(("name", "key"), [("pytorch_model.bin", None), ("model.pt", None), ("last.pt", "state_dict")])
def test_pickled_checkpoint_is_converted_once_and_scores_the_same(folder, cache, name, key):
    reference = clip(source=str(folder))
    converted = clip(source=str(pickled(folder, name, key)))
    assert converted.version == reference.version
    (file,) = cache.rglob("*.safetensors")
    written = os.stat(file).st_mtime_ns
    assert (
        clip(source=str(folder)).score(IMAGES, PROMPTS).total.tolist()
        == reference.score(IMAGES, PROMPTS).total.tolist()
    )
    assert os.stat(file).st_mtime_ns == written
    assert [path for path in cache.rglob("*") if path.is_file()] == [file]


class Planted:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


def test_checkpoint_that_would_run_code_is_refused_and_does_not_run_it(folder, tmp_path):
    pickled(folder)
    for save in (torch.save, lambda content, file: Path(file).write_bytes(pickle.dumps(content))):
        save({"weight": Planted(tmp_path / "planted")}, folder / "pytorch_model.bin")
        with pytest.raises(WeightsError, match="contains more than tensors"):
            clip(source=str(folder))
    assert not (tmp_path / "planted").exists()


def test_checkpoint_of_something_else_is_refused(folder):
    torch.save([1, 2], pickled(folder) / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="no table of named tensors"):
        clip(source=str(folder))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "pytorch_model.bin or single .pt"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x00" * 64), "no CLIP model can be loaded"),
        (lambda folder: (folder / "config.json").unlink(), "no CLIP model can be loaded"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer"),
        (lambda folder: save_file({"logit_scale": torch.ones(())}, folder / "model.safetensors", {"format": "pt"}),
         "tensors do not fit its config"),
    ],
    ids=["no-weights", "damaged", "no-config", "no-tokenizer", "missing-tensors"],
)  # fmt: skip
def test_folder_that_is_no_whole_clip_model_is_refused(folder, spoil, reason):
    spoil(folder)
    with pytest.raises(WeightsError, match=reason):
        clip(source=str(folder))


@pytest.mark.parametrize("source", ["", "absent", "./absent/model", "random-tiny:cilp", "a/b/c"])
def test_source_that_is_neither_folder_nor_hub_id_is_refused(source):
    with pytest.raises(WeightsError, match="neither a folder nor a hub id"):
        clip(source=source)


def test_hub_that_cannot_be_reached_is_a_problem_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"'me/clip' cannot be fetched .* or name a folder"):
        clip(source="me/clip")


def test_pickscore_without_a_tokenizer_takes_that_of_the_model_it_was_trained_from(folder, tmp_path, monkeypatch):
    fetched = []

    def snapshot(name, allow_patterns):
        fetched.append((name, "*.safetensors" in allow_patterns))
        return str(tmp_path / "other")

    reference = pickscore(source=str(folder)).version
    (tmp_path / "other").mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / name).rename(tmp_path / "other" / name)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert pickscore(source=str(folder)).version == reference
    assert fetched == [(TOKENIZER, False)]
