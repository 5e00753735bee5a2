"""The one denoising step of a batch whose rows may each be at another step of another schedule.

Invariant: what a row becomes does not depend on where its neighbours are (tests/unit/test_engine.py), as long as the
number of rows that the kernels see is the same: `rows` fixes it, with copies of the first row in the places left over.
A row of the second-order ODE also depends on its velocity at the step before: the step hands it out, and gets it back.
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
class Place:
    """Where one row is: about to go from `sigmas[step]` to `sigmas[step + 1]`."""

    sample: Sample
    step: int
    sigmas: Sequence[float]
    run_seed: int
    velocity_SC: Tensor | None = None
    """What `Advanced.velocity` said of the row after the step before; None at its first step."""

    def __post_init__(self) -> None:
        looks_back = self.step > 0 and self.sample.sampling.sampler is SamplerKind.ODE2
        if looks_back != (self.velocity_SC is not None):
            raise InputError(
                f"step {self.step} of a {self.sample.sampling.sampler.value} sample came "
                f"{'without' if looks_back else 'with'} the velocity of a step before it, which ode2 needs from its "
                "second step on and nothing else does; hand in what the step before handed out."
            )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What stochastic rows must remember of their step; entry i belongs to row `rows[i]` of the batch."""

    rows: list[int]
    before_RSC: Tensor
    after_RSC: Tensor
    mean_RSC: Tensor
    log_prob_R: Tensor


@dataclass(frozen=True)
class Advanced:
    """Latents after the step, and what its stochastic rows drew; rows with unlike samplers are apart."""

    x_BSC: Tensor
    drawn: list[Drawn]
    velocity: list[Tensor | None]
    """What each row must bring to its next place: its velocity, of its own memory, or None where none is needed."""


@torch.no_grad()
def advance(
    adapter: Adapter,
    x_BSC: Tensor,
    places: Sequence[Place],
    cond: ConditionBatch,
    uncond: ConditionBatch | None,
    rows: int,
) -> Advanced:
    """One step of every row by a forward of `rows` rows; all rows share size and guidance."""
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
    return Advanced(moved, drawn, _looked_back_at(places, v))


def _second_order(
    moved: Tensor, places: Sequence[Place], x: Tensor, v: Tensor, sigma: Tensor, sigma_next: Tensor
) -> Tensor:
    """`moved`, which took Euler steps, but for the rows that know a velocity before; the others keep their bits."""
    known = {row: place.velocity_SC for row, place in enumerate(places) if place.velocity_SC is not None}
    if not known:
        return moved
    index = torch.tensor(list(known), device=x.device)
    v_before = torch.stack(list(known.values()))
    sigmas_before = [places[row].sigmas[places[row].step - 1] for row in known]
    sigma_before = torch.tensor(sigmas_before, dtype=torch.float32, device=x.device)
    after = samplers.ode2_step(x[index], v[index], sigma[index], sigma_next[index], v_before, sigma_before)
    return moved.index_copy(0, index, after)


def _looked_back_at(places: Sequence[Place], v: Tensor) -> list[Tensor | None]:
    """By each row at its next step; copied, so that no batch is kept alive."""
    kinds = [place.sample.sampling.sampler for place in places]
    return [v[row].clone() if kind is SamplerKind.ODE2 else None for row, kind in enumerate(kinds)]


def _filled(rows: Sequence[int], width: int, device: torch.device) -> Tensor:
    return torch.tensor([*rows, *[rows[0]] * (width - len(rows))], device=device)


def _stochastic(places: Sequence[Place]) -> list[list[int]]:
    """Rows that draw noise at this step, those with one sampler, noise level and schedule together."""
    alike: dict[tuple[SamplerKind, float, float], list[int]] = {}
    for row, place in enumerate(places):
        sampling = place.sample.sampling
        if sampling.is_stochastic(place.step):
            alike.setdefault((sampling.sampler, sampling.noise_level, place.sigmas[1]), []).append(row)
    return list(alike.values())


def _draw(
    rows: list[int],
    index: Tensor,
    places: Sequence[Place],
    x: Tensor,
    v: Tensor,
    sigma: Tensor,
    sigma_next: Tensor,
) -> Drawn:
    """The tensors hold `rows` and then copies, so that reductions see one shape however many rows are stochastic."""
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


def _noise(places: Sequence[Place], shape: tuple[int, ...]) -> Tensor:
    noise_RSC = torch.empty(len(places), *shape)
    for run_seed, step in sorted({(place.run_seed, place.step) for place in places}):
        rows = [row for row, place in enumerate(places) if (place.run_seed, place.step) == (run_seed, step)]
        noise_RSC[rows] = step_noise(run_seed, [places[row].sample for row in rows], step, shape)
    return noise_RSC
