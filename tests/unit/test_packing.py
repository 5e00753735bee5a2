"""Patches to tokens and back, and the same order of channels as diffusers' packed latents."""

import pytest
import torch
from diffusers import QwenImagePipeline
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.compute.models.packing import patchify, unpatchify
from spotlight.core.errors import SizeError


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.sampled_from([1, 2, 4]))
@settings(max_examples=40)
def test_patchify_round_trip(batch, channels, rows, columns, p):
    image = torch.arange(batch * channels * rows * columns * p * p, dtype=torch.float32)
    image_BCHW = image.reshape(batch, channels, rows * p, columns * p)
    tokens_BSC = patchify(image_BCHW, p)
    assert tokens_BSC.shape == (batch, rows * columns, channels * p * p)
    assert torch.equal(unpatchify(tokens_BSC, p, channels, rows * p, columns * p), image_BCHW)
    corner = image_BCHW[0, :, :p, (columns - 1) * p :].reshape(-1)
    assert torch.equal(tokens_BSC[0, columns - 1], corner)


def test_patches_of_two_are_the_pipelines_packing():
    latents = torch.randn(2, 16, 6, 10, generator=torch.Generator().manual_seed(0))
    packed = QwenImagePipeline._pack_latents(latents[:, None], 2, 16, 6, 10)
    assert torch.equal(patchify(latents, 2), packed)
    unpacked = QwenImagePipeline._unpack_latents(packed, 48, 80, 8)
    assert torch.equal(unpatchify(packed, 2, 16, 6, 10), unpacked[:, :, 0])


def test_patchify_refuses_what_it_cannot_cut():
    with pytest.raises(SizeError, match="5x6"):
        patchify(torch.zeros(1, 1, 5, 6), 2)
    with pytest.raises(SizeError, match="15 tokens"):
        unpatchify(torch.zeros(1, 14, 64), 2, 16, 6, 10)
