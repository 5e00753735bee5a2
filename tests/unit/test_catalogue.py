"""The catalogue's facts of a family equal those of the loaded model."""

import diffusers
import msgspec
import pytest
import torch

from spotlight.assets import asset
from spotlight.compute.models import families
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.pixels import HEADS
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.core.errors import ConfigError, InputError, SizeError


@pytest.mark.parametrize("family", families.SPECS)
def test_facts_of_a_family_are_those_of_its_model(family):
    facts, spec = facts_of(family), families.SPECS[family]
    assert facts.heads == HEADS
    assert facts.token_pixels == spec.patch**2
    assert facts.tokens(None) == (spec.size.height // spec.patch) * (spec.size.width // spec.patch)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_facts_of_a_released_size_are_those_of_its_transformer_and_vae(family):
    settings = msgspec.json.decode(asset(f"random/full/{family.name}.json").read_bytes())
    with torch.device("meta"):
        transformer = getattr(diffusers, family.transformer)(**settings["transformer"])
        vae = getattr(diffusers, family.vae)(**settings["vae"])
    facts = facts_of(f"random:{family.name}")
    assert facts.heads == transformer.config.num_attention_heads
    assert facts.parameters == sum(tensor.numel() for tensor in transformer.state_dict().values())
    assert facts.vae_parameters == sum(tensor.numel() for tensor in vae.state_dict().values())
    select_trainable(transformer, LoraConfig(rank=3), family.lora_targets, seed=0)
    adapters = sum(p.numel() for p in transformer.parameters() if p.requires_grad)
    assert adapters == 3 * facts.matrix_edges


def test_weights_take_half_the_bytes_in_half_precision():
    facts = facts_of("random:flux")
    whole, half = (facts.bytes(ModelConfig(dtype=dtype)) for dtype in ("float32", "bfloat16"))
    assert whole - half == 2 * facts.parameters


def test_size_that_the_model_cannot_make_is_refused_with_the_nearest_one():
    with pytest.raises(SizeError, match=r"513x512 cannot be made by flux.* nearest size that can be made is 512x512"):
        facts_of("random:flux").size("513x512")
    with pytest.raises(SizeError, match="pretrained at 32x96 only"):
        facts_of("words").size("64x64")
    with pytest.raises(SizeError, match="write it like 512x768"):
        facts_of("random:sd3").size("512")


def test_dtype_that_the_family_does_not_compute_in_is_refused():
    with pytest.raises(ConfigError, match="float16, but flux computes in bfloat16 or float32"):
        facts_of("random:flux").precision(ModelConfig(dtype="float16"))
    assert facts_of("random:sd3").precision(ModelConfig(dtype="float16")) == "float16"


@pytest.mark.parametrize("prefix", ["random:", "random-tiny:"])
def test_unknown_family_is_refused_with_the_nearest_one(prefix):
    with pytest.raises(InputError, match="no model family 'sd33' in diffusers layout: did you mean 'sd3'"):
        facts_of(f"{prefix}sd33")
