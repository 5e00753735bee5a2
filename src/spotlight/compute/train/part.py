"""Plan of a part of an update: the rows that this rank trains, made from the samples' metadata alone.

All ranks make the plans of all ranks, so each one loads only the tensors of its own rows. Where forwards exchange
weights, ranks must also run equally many of them, of the same weight sets: a rank with fewer batches adds dummy ones,
which have no weight, and a batch also runs the frozen forwards that another rank's batch needs
(tests/unit/test_part_plan.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spotlight.compute.train.weight_sets import WeightSet
from spotlight.control.pipeline.tsp import BatchesOver, Pair, pairs_of, runs_of
from spotlight.core.types import Sample


@dataclass(frozen=True)
class SampleGroup:
    """Samples that share forwards, because their texts have one width."""

    samples: Sequence[Sample]
    kept: Sequence[bool]
    places: Sequence[int]
    """Number of trained timesteps of each sample."""
    chosen: Sequence[int]
    """Positions of the samples of this part."""

    def pairs(self) -> list[Pair]:
        return pairs_of(self.chosen, self.kept, self.places)

    @property
    def rows(self) -> int:
        """Rows of the chosen samples, kept or not."""
        return sum(self.places[sample] for sample in self.chosen)


@dataclass(frozen=True)
class RowBatch:
    """Rows of one forward."""

    group: int
    pairs: tuple[Pair, ...]
    also: frozenset[WeightSet] = frozenset()
    """Weight sets that other ranks need at this place."""
    is_dummy: bool = False


@dataclass(frozen=True)
class PartPlan:
    """A part, and this rank's share of it."""

    samples: int
    rows: int
    """Rows of all ranks, kept or not."""
    first: tuple[int, int] | None
    """Rows and samples of the first group that has rows: they estimate the rows of the whole update."""
    pairs: tuple[tuple[Pair, ...], ...]
    """Rows of this rank by group."""
    batches: tuple[RowBatch, ...] | None = None
    """The batches to run, where all ranks run equally many; None: the trainer cuts batches itself."""

    def needed(self, group: int) -> list[int]:
        """Positions of the samples in a group whose tensors this rank needs."""
        extra = [pair.sample for batch in self.batches or () if batch.group == group for pair in batch.pairs]
        return sorted({*(pair.sample for pair in self.pairs[group]), *extra})

    def renumbered(self) -> "PartPlan":
        """The same plan over the needed samples alone."""
        places = [{old: new for new, old in enumerate(self.needed(group))} for group in range(len(self.pairs))]

        def moved(group: int, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
            return tuple(Pair(places[group][pair.sample], pair.place) for pair in pairs)

        batches = None
        if self.batches is not None:
            batches = tuple(replace(batch, pairs=moved(batch.group, batch.pairs)) for batch in self.batches)
        pairs = tuple(moved(group, pairs) for group, pairs in enumerate(self.pairs))
        return replace(self, pairs=pairs, batches=batches)


FlatPair = tuple[int, Pair]
"""A pair and the number of its group."""


def plan_part(groups: Sequence[SampleGroup], shares: Callable[[int], Sequence[range]], rank: int) -> PartPlan:
    """Plan the share of `rank`; `shares` divides a number of pairs between all ranks."""
    flat = _flat(groups)
    mine = shares(len(flat))[rank]
    first = next((group for group in groups if group.rows), None)
    return PartPlan(
        samples=sum(len(group.chosen) for group in groups),
        rows=sum(group.rows for group in groups),
        first=None if first is None else (first.rows, len(first.chosen)),
        pairs=_by_group(flat[mine.start : mine.stop], len(groups)),
    )


def in_lockstep(
    plan: PartPlan,
    groups: Sequence[SampleGroup],
    shares: Callable[[int], Sequence[range]],
    rank: int,
    rows: int,
    over: BatchesOver,
    frozen: Callable[[Sequence[Sample]], frozenset[WeightSet]],
) -> PartPlan:
    """Add batches of `rows` rows, equally many on all ranks; `frozen` names the weight sets that samples need."""
    flat = _flat(groups)
    if not flat:
        return replace(plan, batches=())
    cut = [_batches(_by_group(flat[share.start : share.stop], len(groups)), rows, over) for share in shares(len(flat))]
    most = max(len(each) for each in cut)
    for each in cut:
        group, pair = (each[0].group, each[0].pairs[0]) if each else flat[0]
        each += [RowBatch(group, (pair,), is_dummy=True)] * (most - len(each))
    batches = []
    for number in range(most):
        needs = [frozen([groups[b.group].samples[p.sample] for p in b.pairs]) for b in (each[number] for each in cut)]
        batches.append(replace(cut[rank][number], also=frozenset().union(*needs)))
    return replace(plan, batches=tuple(batches))


def _flat(groups: Sequence[SampleGroup]) -> list[FlatPair]:
    return [(number, pair) for number, group in enumerate(groups) for pair in group.pairs()]


def _by_group(flat: Sequence[FlatPair], groups: int) -> tuple[tuple[Pair, ...], ...]:
    return tuple(tuple(pair for number, pair in flat if number == group) for group in range(groups))


def _batches(by_group: Sequence[Sequence[Pair]], rows: int, over: BatchesOver) -> list[RowBatch]:
    return [
        RowBatch(group, tuple(run[start : start + rows]))
        for group, pairs in enumerate(by_group)
        for run in runs_of(pairs, over)
        for start in range(0, len(run), rows)
    ]
