"""Who gets previews: the split over prompts that promises the most variance, exactly.

The first G previews of a prompt select nothing and every one beyond them adds less than the one before, so the value
of a prompt is zero up to G and concave from there. For a given number m of explored prompts these are the m with the
largest variance, and handing out what remains after m G by marginal gain is optimal; all m are tried. With little
capacity few prompts are therefore explored well instead of all of them in vain.

Invariants (tests/property/test_planner_property.py): no other split of as many previews is worth more; a reserve never
delays what was allocated.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from spotlight.control.advantage import Floats
from spotlight.control.planner.gain import excess


class Allocation(msgspec.Struct, frozen=True):
    """Previews by prompt, and the weighted mean of `excess` that they buy."""

    seeds: tuple[int, ...]
    excess: float


def allocate(variances: Sequence[float], group_size: int, previews: int, most: int) -> Allocation:
    """Split `previews` over prompts with these reward variances, at most `most` each; leftovers stay unused."""
    weights: Floats = np.asarray(variances, dtype=np.float64)
    nobody = Allocation((0,) * weights.size, 0.0)
    explored = int((weights > 0).sum())
    room = most - group_size
    if room < 1 or explored == 0 or previews <= group_size:
        return nobody
    # Sorted by variance, then by place: equal prompts are served in the order given.
    order = np.argsort(-weights, kind="stable")
    ranked = weights[order]
    values = [excess(seeds, group_size) for seeds in range(group_size, most + 1)]
    marginal: Floats = np.diff(np.array(values))
    # Leaving a prompt out costs nothing, so only m with at least one preview beyond G for each are worth trying.
    candidates = range(1, min(explored, previews // (group_size + 1)) + 1)
    worth = [_worth(ranked[:m], marginal, previews - m * group_size) for m in candidates]
    count = 1 + int(np.argmax(worth))
    given = _handed_out(ranked[:count], marginal, previews - count * group_size)
    seeds = np.zeros(weights.size, dtype=np.int64)
    seeds[order[:count]] = np.where(given > 0, group_size + given, 0)
    return Allocation(tuple(int(n) for n in seeds), max(worth) / float(weights.sum()))


def with_reserve(seeds: Sequence[int], variances: Sequence[float]) -> tuple[int, ...]:
    """As many for every prompt that comes after the last explored one: work for slots that come, or prove quicker.

    Previews are served group by group, so a reserve before that would be at the expense of what was allocated.
    """
    explored = [number for number, count in enumerate(seeds) if count]
    if not explored:
        return tuple(seeds)
    last = explored[-1]
    return tuple(
        seeds[last] if number > last and variance > 0 else count
        for number, (count, variance) in enumerate(zip(seeds, variances, strict=True))
    )


def _worth(ranked: Floats, marginal: Floats, budget: int) -> float:
    gains = np.outer(ranked, marginal).ravel()
    if budget < gains.size:
        gains = np.partition(gains, gains.size - budget)[gains.size - budget :]
    return float(gains.sum())


def _handed_out(ranked: Floats, marginal: Floats, budget: int) -> NDArray[np.int64]:
    """Previews beyond G by prompt; marginal gains fall within a prompt, so the largest are always its first."""
    gains = np.outer(ranked, marginal)
    taken = np.argsort(-gains.ravel(), kind="stable")[:budget]
    return np.bincount(taken // marginal.size, minlength=ranked.size).astype(np.int64)
