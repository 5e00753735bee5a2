"""Attention without a mask computes what masked attention computes, forward and backward."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spotlight.compute.fast.attention import AttentionKernel, attend, with_dense_strides

ROWS, TOKENS, HEADS, WIDTH = 3, 40, 2, 16
LENGTHS = (12, 5, 1)
TEXT = 12


def _inputs(scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values in float64, and the mask: text first, padded to TEXT tokens, then the image."""
    torch.manual_seed(0)
    parts = [(torch.randn(ROWS, TOKENS, HEADS, WIDTH) * scale).double().requires_grad_() for _ in range(3)]
    keep_BS = torch.ones(ROWS, TOKENS, dtype=torch.bool)
    keep_BS[:, :TEXT] = torch.arange(TEXT) < torch.tensor(LENGTHS)[:, None]
    return parts, keep_BS


def _zeroed(parts: list[Tensor], keep_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keep = keep_BS[..., None, None]
    return parts[0], parts[1] * keep, parts[2] * keep


def _reference(parts: list[Tensor], keep_BS: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in parts)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep_BS[:, None, None, :]).transpose(1, 2)


def _attended(kernel: AttentionKernel, parts: list[Tensor], keep_BS: Tensor) -> Tensor:
    return attend(kernel, *_zeroed(parts, keep_BS), keep_BS, (~keep_BS).sum(1))


@pytest.mark.parametrize("kernel", [AttentionKernel.CPU, AttentionKernel.MASKED])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_output_is_that_of_masked_attention(kernel: AttentionKernel, scale: float) -> None:
    parts, keep_BS = _inputs(scale)
    with torch.no_grad():
        torch.testing.assert_close(_attended(kernel, parts, keep_BS), _reference(parts, keep_BS))


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_gradients_are_those_of_masked_attention(scale: float) -> None:
    parts, keep_BS = _inputs(scale)
    # Outputs of padded queries are never used.
    upstream = torch.randn(ROWS, TOKENS, HEADS, WIDTH).double() * keep_BS[..., None, None]
    wanted = torch.autograd.grad((_reference(parts, keep_BS) * upstream).sum(), parts)
    found = torch.autograd.grad((_attended(AttentionKernel.CPU, parts, keep_BS) * upstream).sum(), parts)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel", [AttentionKernel.CPU, AttentionKernel.MASKED])
def test_attention_without_padding_is_that_without_a_mask(kernel: AttentionKernel) -> None:
    parts, _ = _inputs()
    q, k, v = (part.transpose(1, 2) for part in parts)
    wanted = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    found = attend(kernel, *parts, None, torch.zeros(ROWS))
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), parts), torch.autograd.grad(wanted.square().sum(), parts), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_padding_changes_nothing_even_if_its_text_is_garbage() -> None:
    parts, keep_BS = _inputs()
    with torch.no_grad():
        before = _attended(AttentionKernel.CPU, parts, keep_BS)
        for part in parts[1:]:
            part[~keep_BS] = 1e4
        after = _attended(AttentionKernel.CPU, parts, keep_BS)
    assert torch.equal(before, after)


def test_output_that_padding_would_drown_is_not_a_number() -> None:
    """All real keys have logits near -40 with the queries: the correction has no precision left."""
    q = torch.full((1, 4, 1, WIDTH), 1.0).double()
    keep_BS = torch.tensor([[True, True, False, False]])
    k = -40.0 / WIDTH**0.5 * torch.ones_like(q) * keep_BS[..., None, None]
    out = attend(AttentionKernel.CPU, q, k, torch.ones_like(q) * keep_BS[..., None, None], keep_BS, (~keep_BS).sum(1))
    assert out.isnan().all()


def test_dimension_of_one_gets_the_stride_of_a_new_tensor_whatever_it_had():
    numbers = torch.arange(24.0).view(2, 3, 4)
    for stride in (0, 1, 7):
        odd = numbers.as_strided((2, 3, 4, 1), (12, 4, 1, stride))
        dense = with_dense_strides(odd)
        assert dense.stride() == (12, 4, 1, 1)
        assert torch.equal(dense.flatten(), numbers.flatten())
