"""The subset of previews with the largest reward variance: exact, in O(n log n).

An optimum always consists of the k highest and the rest lowest rewards, so one sort and one scan over k find it.
Invariants (tests/property/test_explore_property.py): no subset of the size has a larger variance; neither the order of
arrival nor a preview without a finite reward changes the outcome.

Ties: previews are ordered by (reward, seed). Where several k reach the same variance the smallest is taken; so among
equal rewards the lower end takes the smallest seeds and the upper end the largest.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import LARGEST_REWARD, Floats
from spotlight.core.events import Previewed

TIE = 1e-12
"""Variances this close, relative to the largest, are one variance: rounding must not decide between them."""


class Preview(msgspec.Struct, frozen=True, order=True):
    """What a preview returns: its seed and a reward that only ranks it."""

    seed: int
    reward: float


def by_candidate(batches: Iterable[Previewed]) -> dict[int, list[Preview]]:
    """Previews of an iteration by the number of their candidate."""
    candidates: dict[int, list[Preview]] = {}
    for batch in batches:
        for number, seed, reward in zip(batch.groups, batch.seeds, batch.rewards, strict=True):
            candidates.setdefault(number, []).append(Preview(seed, reward))
    return candidates


def usable(previews: Iterable[Preview]) -> list[Preview]:
    """Previews with a finite reward, by seed; one that arrived twice counts once, with its lowest reward."""
    by_seed: dict[int, Preview] = {}
    for preview in sorted(p for p in previews if abs(p.reward) <= LARGEST_REWARD):
        by_seed.setdefault(preview.seed, preview)
    return list(by_seed.values())


def select(previews: Iterable[Preview], size: int) -> tuple[int, ...]:
    """Seeds of the `size` previews whose rewards vary most, in ascending order; all of them where there are fewer."""
    ranked = sorted(usable(previews), key=lambda preview: (preview.reward, preview.seed))
    if len(ranked) > size:
        high = _best_split(np.array([preview.reward for preview in ranked]), size)[0]
        ranked = ranked[: size - high] + ranked[len(ranked) - high :]
    return tuple(sorted(preview.seed for preview in ranked))


def largest_variance(rewards: Sequence[float] | Floats, size: int) -> float:
    """Population variance of the best subset of `size`; of all where there are fewer. Rewards must be finite."""
    ranked = np.sort(np.asarray(rewards, dtype=np.float64))
    return _best_split(ranked, min(size, ranked.size))[1] if ranked.size else 0.0


def _best_split(ranked: Floats, size: int) -> tuple[int, float]:
    """How many of the highest to take beside the lowest, and the variance of that subset; `ranked` ascends."""
    spread = float(ranked[-1] - ranked[0])
    if size < 2 or spread == 0:
        return 0, 0.0
    # Centred and scaled, the subset with both ends has a variance far above the rounding of these sums.
    x = (ranked - float(np.median(ranked))) / spread
    sums, squares = _prefix(x), _prefix(x * x)
    high = np.arange(size + 1)
    first_high = x.size - high
    total = sums[size - high] + (sums[-1] - sums[first_high])
    total_squares = squares[size - high] + (squares[-1] - squares[first_high])
    variances = total_squares / size - (total / size) ** 2
    best = float(variances.max())
    return int(np.argmax(variances >= best * (1 - TIE))), best * spread * spread


def _prefix(x: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(x)])
