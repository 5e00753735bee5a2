"""Any partition of rows into micro-batches sums to the same loss and the same gradient."""

from collections.abc import Callable

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spotlight.compute.rollout import samplers
from spotlight.compute.train.config import FlowGrpoConfig, NftConfig
from spotlight.compute.train.losses.flow_grpo import flow_grpo_loss
from spotlight.compute.train.losses.nft import nft_loss, noised, preference
from spotlight.core.types import SamplerKind

B, S, C = 8, 4, 3
Rows = slice | list[int]

partitions = st.permutations(range(B)).flatmap(
    lambda order: st.sets(st.integers(1, B - 1)).map(
        lambda cuts: [order[start:stop] for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), B], strict=True)]
    )
)


def gradient(loss: Callable[[Tensor, Rows], Tensor], v: Tensor, parts: list[Rows]) -> tuple[Tensor, Tensor]:
    """Summed loss and gradient of a shared weight matrix, accumulated over micro-batches."""
    weight = torch.eye(C, dtype=torch.float64).mul(0.9).requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for rows in parts:
        part = loss(v[rows] @ weight, rows).sum() / B
        part.backward()
        total = total + part.detach()
    assert weight.grad is not None
    return total, weight.grad


def assert_partition_free(loss: Callable[[Tensor, Rows], Tensor], v: Tensor, parts: list[Rows]) -> None:
    whole, whole_gradient = gradient(loss, v, [slice(None)])
    total, total_gradient = gradient(loss, v, parts)
    torch.testing.assert_close(total, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(total_gradient, whole_gradient, rtol=1e-11, atol=1e-14)
    assert whole_gradient.abs().max() > 1e-6


@given(partitions, st.integers(0, 2**31), st.sampled_from([0.1, 1.0]))
def test_nft(parts: list[list[int]], seed: int, beta: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x0, noise, v_old, v = torch.randn(4, B, S, C, generator=generator, dtype=torch.float64)
    t_B, advantage_B = torch.rand(2, B, generator=generator, dtype=torch.float64) * 0.9 + 0.05
    x_t, r_B, config = noised(x0, noise, t_B), preference(4 * advantage_B - 2, 1.0), NftConfig(beta=beta)

    def loss(v_theta: Tensor, rows: Rows) -> Tensor:
        return nft_loss(v_theta, v_old[rows], x_t[rows], x0[rows], t_B[rows], r_B[rows], config).loss_B

    assert_partition_free(loss, v, list(parts))


@given(partitions, st.integers(0, 2**31), st.booleans())
def test_flow_grpo(parts: list[list[int]], seed: int, guard: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, noise, v_ref, v = torch.randn(4, B, S, C, generator=generator, dtype=torch.float64)
    sigma_B = torch.rand(B, generator=generator, dtype=torch.float64) * 0.5 + 0.4
    advantage_B = torch.randn(B, generator=generator, dtype=torch.float64)
    kind, config = SamplerKind.FLOW_SDE, FlowGrpoConfig(clip=0.2, kl_weight=0.04, ratio_normalisation=guard)

    def made(velocity: Tensor, rows: Rows) -> samplers.Transition:
        sigma = sigma_B[rows]
        return samplers.transition(kind, x[rows], velocity, sigma, sigma - 0.1, 0.95, 0.7)

    everything = slice(None)
    old, reference = made(v * 0.92, everything), made(v_ref, everything)
    x_next = old.sample(noise)
    old_log_prob_B = samplers.log_prob(kind, x_next, old)

    def loss(velocity: Tensor, rows: Rows) -> Tensor:
        current = made(velocity, rows)
        return flow_grpo_loss(
            samplers.log_prob(kind, x_next[rows], current),
            old_log_prob_B[rows],
            advantage_B[rows],
            config,
            current=current,
            x_next=x_next[rows],
            old_mean=old.mean[rows],
            ref_mean=reference.mean[rows],
        ).loss_B

    assert_partition_free(loss, v, list(parts))
