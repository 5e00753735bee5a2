"""Layers with a second weight in fp8: exact outside of previews, near in them."""

import torch
from torch import nn

from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.fast.fp8 import PreviewSwitch, add_fp8, rounding


def _block(frozen: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 16), nn.Linear(16, 5))
    return block.requires_grad_(not frozen)


def test_exact_forward_keeps_its_bits_and_its_names() -> None:
    plain, block = _block(), _block()
    taken = add_fp8([block], PreviewSwitch())
    x = torch.randn(3, 7, 32)
    assert torch.equal(block(x), plain(x))
    assert block.state_dict().keys() == plain.state_dict().keys()
    # Two layers have sides that the tensor cores take; a byte per weight, and a scale of four bytes per row.
    assert taken == 64 * 32 + 16 * 64 + 4 * (64 + 16)


def test_preview_is_near_the_exact_forward_and_not_equal() -> None:
    block, precision = _block(), PreviewSwitch()
    add_fp8([block], precision)
    x = torch.randn(3, 7, 32)
    exact = block(x)
    precision.previews = True
    preview = block(x)
    assert 0 < float((preview - exact).norm() / exact.norm()) < 0.1


def test_rows_have_scales_of_their_own_so_one_large_row_does_not_round_the_others_away() -> None:
    block, precision = _block(), PreviewSwitch(previews=True)
    add_fp8([block], precision)
    x = torch.randn(4, 32)
    alone = block(x)[1:]
    x[0] *= 1e6
    assert torch.equal(block(x)[1:], alone)


def test_trained_weights_have_no_copy_because_it_would_be_out_of_date() -> None:
    block = _block(frozen=False)
    assert add_fp8([block], PreviewSwitch()) == 0
    assert all(type(layer) is not nn.Linear or layer.weight.requires_grad for layer in block)


def test_rounded_layers_have_the_numbers_of_fp8_and_are_exact_again_afterwards() -> None:
    trained, frozen, precision = _block(frozen=False), _block(), PreviewSwitch(previews=True)
    x = torch.randn(3, 7, 32)
    exact = trained(x).detach()
    with torch.no_grad(), rounding([trained]):
        rounded = trained(x)
    assert torch.equal(trained(x), exact)
    add_fp8([frozen], precision)
    # The last layer has a side that the tensor cores do not take, so only `rounding` rounds it.
    with torch.no_grad(), rounding([trained[:3]]):
        assert torch.allclose(trained[:3](x), frozen[:3](x), atol=1e-6)
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.1


def test_only_previews_compute_in_fp8_and_only_if_there_are_such_weights() -> None:
    with_fp8 = FastModel(AttentionKernel.MASKED, has_fp8=True)
    without = FastModel(AttentionKernel.MASKED)
    for model, is_preview, expected in ((with_fp8, True, True), (with_fp8, False, False), (without, True, False)):
        with model.rolling_out("own", is_preview):
            assert model.precision.previews is expected
        assert model.precision.previews is False
        assert model.weights is None
