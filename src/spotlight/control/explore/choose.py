"""Which prompts and which of their seeds are rolled out: those with the previews' best contrast, fresh seeds elsewhere.

    usable previews   rewards         chosen
    more than G       vary            the G with the largest variance
    1 .. G            any             all of them, and fresh seeds up to G: nothing can be selected, and none is wasted
    more than G       all equal       G fresh seeds: previewed ones were just seen not to differ, fresh ones may
    none              -               G fresh seeds

Invariant (tests/property/test_explore_property.py): exactly G distinct seeds, whatever arrived and in any order.
"""

from collections.abc import Iterable, Sequence

import msgspec

from spotlight.control.explore.select import TIE, Preview, largest_variance, select, usable
from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import PromptId


class Chosen(msgspec.Struct, frozen=True):
    """Seeds of one group; the last `fresh` of them were never previewed."""

    seeds: tuple[int, ...]
    fresh: int

    @property
    def previewed(self) -> tuple[int, ...]:
        return self.seeds[: len(self.seeds) - self.fresh]


def choose(previews: Sequence[Preview], group_size: int, fresh: Iterable[int]) -> Chosen:
    """The seeds to roll out; `fresh` yields seeds without a preview and is only asked for as many as are missing."""
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
                "group is rolled out whole; hand over as many fresh seeds as the group is large."
            )
        if seed not in taken:
            taken.add(seed)
            added.append(seed)
    return Chosen(selected + tuple(added), len(added))


def most_varied(candidates: Sequence[Sequence[Preview]], count: int, group_size: int) -> tuple[int, ...]:
    """Numbers of the `count` candidates whose best group would vary most, ascending; of equal ones those with more
    previews, then the first.

    Those without a usable preview come last: nothing speaks for them. Who is chosen by a group's worth of previews is
    still chosen when more of theirs are known and no more of the others', since the best group only varies more.
    """
    rewards = [[preview.reward for preview in usable(previews)] for previews in candidates]
    varied = [largest_variance(known, group_size) for known in rewards]
    # Of equal ones, who has had more previews: rounding must not waste those that scouts have asked for.
    tie = max(varied, default=0.0) * TIE
    levels = [
        -1 if not known else round(value / tie) if tie else 0 for known, value in zip(rewards, varied, strict=True)
    ]
    ranked = sorted(range(len(candidates)), key=lambda number: (-levels[number], -len(rewards[number]), number))
    return tuple(sorted(ranked[:count]))


def unselected(previews: Sequence[Preview], chosen: Chosen) -> tuple[int, ...]:
    """Seeds with a usable preview that were not chosen, ascending: what the audit draws from."""
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
