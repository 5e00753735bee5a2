"""Models of the released size with random weights, on a device without memory."""

import pytest
import torch

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.random_weights import random_full
from spotlight.core.types import Size

# Billions of parameters of SD3.5-medium, FLUX.1-dev and Qwen-Image: transformer, and all text encoders.
RELEASED = {"sd3": (2.24, 5.58), "flux": (11.9, 4.88), "qwen-image": (20.43, 8.29)}


def billions(*modules: torch.nn.Module) -> float:
    return sum(p.numel() for module in modules for p in module.parameters()) / 1e9


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_full_model_has_the_parameters_of_the_release_in_its_dtype(name):
    adapter = random_full(FAMILIES[name], torch.device("meta"), torch.bfloat16)
    transformer, text = RELEASED[name]
    assert billions(adapter.transformer) == pytest.approx(transformer, rel=0.01)
    encoders = [part for part in adapter.text.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    assert billions(*encoders) == pytest.approx(text, rel=0.01)
    dtypes = {p.dtype for module in (adapter.transformer, *encoders) for p in module.parameters()}
    assert dtypes == {torch.bfloat16}
    assert adapter.latent_shape(Size(1024, 1024)) == (4096, 64)
    assert adapter.heads == 24
