"""Seed exploration: which previewed seeds are rolled out, and the mean reward of a prompt whose seeds were selected.

**Selection** keeps the subset of previews with the largest reward variance: exact, in O(n log n). An optimum always
consists of the k highest and the rest lowest rewards, so one sort and one scan over k find it. Previews are ordered by
(reward, seed). Where several k reach the same variance the smallest is taken; so among equal rewards the lower end
takes the smallest seeds and the upper end the largest. Invariants (tests/property/test_explore_property.py): no subset
of the size has a larger variance; neither the order of arrival nor a preview without a finite reward changes it.

**Choice** of G seeds per prompt, always G distinct seeds:

    usable previews   rewards         chosen
    more than G       vary            the G with the largest variance
    1 .. G            any             all of them, and fresh seeds up to G
    more than G       all equal       G fresh seeds: the previewed ones do not differ, fresh ones may
    none              -               G fresh seeds

**Baseline.** The mean reward of a prompt is estimated from the kept and the audited seeds.

Selected seeds are extremes, so their mean is not the prompt's. Every seed of the prompt that was previewed or added
fresh is in one of two strata:

- the group itself, `G` seeds: all are rolled out and stand for themselves. Fresh seeds belong here: no preview chose
  them, but they are draws of the same prompt, and each stands for one seed;
- the `U` previewed seeds that were not selected: each is rolled out with the same probability `audit_share`,
  independently (`audit_seeds`), so that each audited one stands for 1 / audit_share of them.

    mean = (G mean of the group + U mean of the audited) / (G + U)

Within the second stratum the weights 1 / audit_share are equal and cancel: its mean is Hajek's estimate, and its size U
is known. Horvitz and Thompson's sum over G + U is unbiased as well, but a constant added to all rewards changes it by
the chance number of audited seeds, which a baseline must not allow. Hajek's ratio over both strata leans towards the
group's mean where few are audited. This estimate is unbiased whenever any seed is audited, moves exactly with a
constant, and is the plain mean where nothing was selected (U = 0).

A seed without a usable reward, dropped or unscored, counts as the mean of its stratum. If no audited seed has one, by
chance with probability (1 - audit_share)^U, the unselected seeds are unknown and there is no estimate.

Checked by simulation (tests/property/test_baseline_property.py).
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import LARGEST_REWARD, Floats, scored
from spotlight.core.errors import ConfigError
from spotlight.core.events import Previewed
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import PromptId

TIE = 1e-12
"""Relative tolerance within which variances are equal: rounding must not decide between them."""


class Preview(msgspec.Struct, frozen=True, order=True):
    """Result of a preview: its seed and a reward that only ranks it."""

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
    """The number of highest rewards to take beside the lowest, and the variance of that subset; `ranked` ascends."""
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


class Chosen(msgspec.Struct, frozen=True):
    """Seeds of one group; the last `fresh` of them were never previewed."""

    seeds: tuple[int, ...]
    fresh: int

    @property
    def previewed(self) -> tuple[int, ...]:
        return self.seeds[: len(self.seeds) - self.fresh]


def choose(previews: Sequence[Preview], group_size: int, fresh: Iterable[int]) -> Chosen:
    """The seeds to roll out; `fresh` yields seeds without a preview and is read only as far as needed."""
    candidates = usable(previews)
    flat = len({preview.reward for preview in candidates}) == 1
    selected = () if flat and len(candidates) > group_size else select(candidates, group_size)
    taken = set(selected)
    added: list[int] = []
    source = iter(fresh)
    while len(added) < group_size - len(selected):
        seed = next(source, None)
        if seed is None:
            raise ConfigError(
                f"a group of {group_size} has {len(selected)} previewed and only {len(added)} fresh seeds, but every "
                f"group is rolled out whole; pass at least {group_size} fresh seeds."
            )
        if seed not in taken:
            taken.add(seed)
            added.append(seed)
    return Chosen(selected + tuple(added), len(added))


def most_varied(candidates: Sequence[Sequence[Preview]], count: int, group_size: int) -> tuple[int, ...]:
    """Numbers of the `count` candidates whose best group would vary most, ascending; of equal ones those with more
    previews, then the first.

    Candidates without a usable preview come last. A candidate that is chosen by a group's worth of previews is still
    chosen when it gets more previews and the others do not, since the best group only varies more.
    """
    rewards = [[preview.reward for preview in usable(previews)] for previews in candidates]
    varied = [largest_variance(known, group_size) for known in rewards]
    # The candidate with more previews wins a tie: rounding must not waste those that followed the scouts.
    tie = max(varied, default=0.0) * TIE
    levels = [
        -1 if not known else round(value / tie) if tie else 0 for known, value in zip(rewards, varied, strict=True)
    ]
    ranked = sorted(range(len(candidates)), key=lambda number: (-levels[number], -len(rewards[number]), number))
    return tuple(sorted(ranked[:count]))


def unselected(previews: Sequence[Preview], chosen: Chosen) -> tuple[int, ...]:
    """Seeds with a usable preview that were not chosen, ascending; the audit draws from them."""
    return tuple(preview.seed for preview in usable(previews) if preview.seed not in chosen.seeds)


def audit_key(run_seed: int, iteration: int, prompt: PromptId) -> int:
    """Key of the audit draw of one prompt in one iteration."""
    return derive_key(Purpose.ORDER, run_seed, "audit", iteration, prompt)


def audit_seeds(unselected: Sequence[int], share: float, key: int) -> tuple[int, ...]:
    """Each unselected seed with probability `share`, independently: rolled out exactly, never trained on.

    Independence is what makes the weights of `fidelity.py` exact, so the number of seeds varies from draw to draw.
    """
    candidates = sorted(unselected)
    drawn = generator(key).random(len(candidates))
    return tuple(seed for seed, number in zip(candidates, drawn, strict=True) if number < share)


def prompt_mean(group: Floats, audited: Floats, unselected: int) -> float | None:
    """Mean reward of all seeds of the prompt; None if the rewards do not determine it, and the group's mean serves.

    `group` and `audited` are exact rewards in any order, NaN where there is none; `unselected` is the number of
    previewed seeds that were not selected, audited or not.
    """
    kept, drawn = scored(group), scored(audited)
    if not kept.size or (unselected and not drawn.size):
        return None
    if not unselected:
        drawn = kept
    # Relative to the lowest, so that equal rewards have exactly their value as their mean.
    lowest = float(min(kept.min(), drawn.min()))
    kept_mean, drawn_mean = (math.fsum(rewards - lowest) / rewards.size for rewards in (kept, drawn))
    return lowest + (group.size * kept_mean + unselected * drawn_mean) / (group.size + unselected)
