"""One denoising step of a batch whose rows may be at different steps of different schedules.

Invariant: a row's result does not depend on the steps of its neighbours (tests/unit/test_engine.py), as long as the
kernels see the same number of rows. `rows` fixes that number; copies of the first row fill the batch. A row of the
second-order ODE also depends on its previous velocity: each step returns it, and the caller passes it to the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.models.adapter import Adapter, ConditionBatch
from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.noise import step_noise
from spotlight.core.errors import InputError
from spotlight.core.types import Sample, SamplerKind


@dataclass(frozen=True)
class RowPlace:
    """Position of one row: before its step from `sigmas[step]` to `sigmas[step + 1]`."""

    sample: Sample
    step: int
    sigmas: Sequence[float]
    run_seed: int
    velocity_SC: Tensor | None = None
    """The row's `Advanced.velocity` of the previous step; None at its first step."""

    def __post_init__(self) -> None:
        needs_velocity = self.step > 0 and self.sample.sampling.sampler is SamplerKind.ODE2
        if needs_velocity != (self.velocity_SC is not None):
            raise InputError(
                f"step {self.step} of a {self.sample.sampling.sampler.value} sample has "
                f"{'no' if needs_velocity else 'a'} velocity of the previous step, which only ode2 needs, from its "
                "second step on; pass the velocity that the previous step returned."
            )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Tensors recorded for the stochastic rows of a step; entry i belongs to row `rows[i]` of the batch."""

    rows: list[int]
    before_RSC: Tensor
    after_RSC: Tensor
    mean_RSC: Tensor
    log_prob_R: Tensor


@dataclass(frozen=True)
class Advanced:
    """Latents after the step, and the record of its stochastic rows, one entry per kind of sampler."""

    x_BSC: Tensor
    drawn: list[Drawn]
    velocity: list[Tensor | None]
    """Velocity of each row for its next `RowPlace`, in separate memory; None where the sampler needs none."""


@torch.no_grad()
def advance(
    adapter: Adapter,
    x_BSC: Tensor,
    places: Sequence[RowPlace],
    cond: ConditionBatch,
    uncond: ConditionBatch | None,
    rows: int,
) -> Advanced:
    """Advance every row by one step with a forward of `rows` rows; all rows share size and guidance."""
    sampling = places[0].sample.sampling
    device = x_BSC.device
    sigma_B = torch.tensor([place.sigmas[place.step] for place in places], dtype=torch.float32, device=device)
    next_B = torch.tensor([place.sigmas[place.step + 1] for place in places], dtype=torch.float32, device=device)
    fill = slice(None) if len(places) == rows else _filled(range(len(places)), rows, device)
    v = adapter.velocity(
        x_BSC[fill], sigma_B[fill], cond.rows(fill), None if uncond is None else uncond.rows(fill),
        sampling.guidance, sampling.size,
    )[: len(places)]  # fmt: skip
    moved = _second_order(samplers.ode_step(x_BSC, v, sigma_B, next_B), places, x_BSC, v, sigma_B, next_B)
    drawn = []
    for alike in _stochastic(places):
        index = _filled(alike, rows, device)
        part = _draw(alike, index, places, x_BSC[index], v[index], sigma_B[index], next_B[index])
        moved = moved.index_copy(0, index[: len(alike)], part.after_RSC)
        drawn.append(part)
    return Advanced(moved, drawn, _next_velocities(places, v))


def _second_order(
    moved: Tensor, places: Sequence[RowPlace], x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor
) -> Tensor:
    """Replace the Euler steps in `moved` of rows with a previous velocity; the other rows keep their bits."""
    previous = {row: place.velocity_SC for row, place in enumerate(places) if place.velocity_SC is not None}
    if not previous:
        return moved
    index = torch.tensor(list(previous), device=x.device)
    v_before = torch.stack(list(previous.values()))
    sigmas_before = [places[row].sigmas[places[row].step - 1] for row in previous]
    sigma_before = torch.tensor(sigmas_before, dtype=torch.float32, device=x.device)
    after = samplers.ode2_step(x[index], v[index], sigma[index], sigma_next[index], v_before, sigma_before)
    return moved.index_copy(0, index, after)


def _next_velocities(places: Sequence[RowPlace], v: Tensor) -> list[Tensor | None]:
    """Velocities that rows need at their next step; copied, so that no batch is kept alive."""
    kinds = [place.sample.sampling.sampler for place in places]
    return [v[row].clone() if kind is SamplerKind.ODE2 else None for row, kind in enumerate(kinds)]


def _filled(rows: Sequence[int], width: int, device: torch.device) -> Tensor:
    return torch.tensor([*rows, *[rows[0]] * (width - len(rows))], device=device)


def _stochastic(places: Sequence[RowPlace]) -> list[list[int]]:
    """Rows that draw noise at this step, grouped by sampler, noise level and schedule."""
    alike: dict[tuple[SamplerKind, float, float], list[int]] = {}
    for row, place in enumerate(places):
        sampling = place.sample.sampling
        if sampling.is_stochastic(place.step):
            alike.setdefault((sampling.sampler, sampling.noise_level, place.sigmas[1]), []).append(row)
    return list(alike.values())


def _draw(
    rows: list[int],
    index: Tensor,
    places: Sequence[RowPlace],
    x: Tensor,
    v: Tensor,
    sigma: Tensor,
    sigma_next: Tensor,
) -> Drawn:
    """Draw the step of `rows`; the tensors are filled with copies, so that reductions always see one shape."""
    first, count = places[rows[0]], len(rows)
    kind = first.sample.sampling.sampler
    given = samplers.transition(kind, x, v, sigma, sigma_next, first.sigmas[1], first.sample.sampling.noise_level)
    shape = tuple(x.shape[1:])
    noise_RSC = _noise([places[row] for row in rows], shape).to(x.device)
    after = given.sample(noise_RSC[_filled(range(count), len(index), x.device)])
    return Drawn(
        rows=rows,
        before_RSC=x[:count],
        after_RSC=after[:count],
        mean_RSC=given.mean[:count],
        log_prob_R=samplers.log_prob(kind, after, given)[:count],
    )


def _noise(places: Sequence[RowPlace], shape: tuple[int, ...]) -> Tensor:
    noise_RSC = torch.empty(len(places), *shape)
    for run_seed, step in sorted({(place.run_seed, place.step) for place in places}):
        rows = [row for row, place in enumerate(places) if (place.run_seed, place.step) == (run_seed, step)]
        noise_RSC[rows] = step_noise(run_seed, [places[row].sample for row in rows], step, shape)
    return noise_RSC
