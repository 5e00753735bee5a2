"""The shipped base weights: equal to their card, small enough to ship, and able to draw."""

import re

import pytest
import torch

from spotlight.assets import asset
from spotlight.compute.data import words
from spotlight.compute.models import families
from spotlight.compute.rollout.denoise import roll_out
from spotlight.core.types import Sample, Sampling, Version

FAMILIES = sorted(families.SPECS)
MOST_BYTES = 40_000_000
ROW = re.compile(r"^\| `(?P<file>[\w.-]+)` \| `(?P<family>[\w-]+)` \|.*\| `(?P<digest>[0-9a-f]{32})` \|$", re.MULTILINE)


def card() -> dict[str, tuple[str, str]]:
    """File and digest of each family, from the table of the README beside the weights."""
    text = asset("weights/README.md").read_text()
    return {row["family"]: (row["file"], row["digest"]) for row in ROW.finditer(text)}


def test_card_lists_every_family_and_no_other():
    assert sorted(card()) == FAMILIES == ["scenes", "words", "words-large"]


@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_weights_load_and_have_the_digest_of_their_card(family):
    content = families.read_weights(family)
    assert (f"{family}.safetensors", content.digest) == card()[family]
    adapter = families.build(content)
    assert adapter.family == family
    assert all(torch.isfinite(parameter).all() for parameter in adapter.transformer.parameters())


def test_shipped_weights_together_stay_small():
    shipped = [path for path in asset("weights").iterdir() if path.is_file()]
    assert {f"{family}.safetensors" for family in FAMILIES} <= {path.name for path in shipped}
    assert sum(path.stat().st_size for path in shipped) <= MOST_BYTES


def test_sample_of_the_shipped_words_is_a_picture():
    adapter = families.load("words")
    prompt = words.prompt_for("river")
    sampling = Sampling(steps=10, size=adapter.native_size)
    sample = Sample(prompt=prompt.id, seed=0, sampling=sampling, version=Version(0))
    x0 = roll_out(adapter, [sample], adapter.collate(adapter.encode([prompt])), None, run_seed=0).x0_BSC
    # Pixels are -1..1; decoding clamps, so only the latents show whether the model stays in range by itself.
    assert torch.isfinite(x0).all()
    assert x0.abs().max() < 2
    image = adapter.decode(x0, adapter.native_size)
    assert image.shape == (1, 3, 32, 96)
    assert image.min() >= 0
    assert image.max() <= 1
    # Letters stand out from their paper.
    grey = image.mean(1)
    assert grey.max() - grey.min() > 0.2
