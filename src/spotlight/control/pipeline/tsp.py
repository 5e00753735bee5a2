"""TSP, time-step parallelism: the (sample, timestep) pairs of an update share forwards, whatever their timesteps.

A pair is plain data, so any batch of pairs, in any order, is a legal micro-batch. Without TSP (`batches_over: samples`)
a batch holds one timestep of many samples, and small parts of an update make small batches, which are bound by kernel
launches. The order of accumulation is by sample, never by arrival, and the gradient does not depend on the batches
(tests/property/test_trainer_property.py).

TSP over ranks: the pairs of a part are shared between the training ranks in contiguous runs, in the same order, so that
one sample's timesteps may be trained by two ranks. A run is as long as its rank is fast, measured in pairs per second,
so that the last rank ends as early as possible. All ranks compute all shares from the same exchanged speeds
(tests/property/test_rank_shares_property.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

EQUALLY_FAST = 0.05
"""Relative difference of speeds below which ranks count as equally fast: it is noise of the measurement."""


class BatchesOver(StrEnum):
    """Common property of the (sample, timestep) pairs of one forward."""

    PAIRS = "pairs"
    """Any pairs share a forward, each at its own timestep."""
    SAMPLES = "samples"
    """Pairs of one forward have the same place among their sample's timesteps, as in systems without TSP."""


@dataclass(frozen=True)
class Pair:
    """Sample `sample` at its `place`-th trained timestep."""

    sample: int
    place: int


def pairs_of(samples: Sequence[int], kept: Sequence[bool], places: Sequence[int]) -> list[Pair]:
    """The pairs of these samples, sample by sample; `kept` and `places` (trained timesteps) are by sample number."""
    return [Pair(sample, place) for sample in samples if kept[sample] for place in range(places[sample])]


def runs_of(pairs: Sequence[Pair], over: BatchesOver) -> list[list[Pair]]:
    """Split the pairs into runs; each run is cut into batches separately."""
    if over is BatchesOver.PAIRS:
        return [list(pairs)]
    by_place: dict[int, list[Pair]] = {}
    for pair in pairs:
        by_place.setdefault(pair.place, []).append(pair)
    return [by_place[place] for place in sorted(by_place)]


def run_sizes(samples: int, places: int, over: BatchesOver) -> list[int]:
    """Lengths of the runs where every sample is trained at `places` timesteps."""
    return [samples * places] if over is BatchesOver.PAIRS else [samples] * places


def rank_shares(pairs: int, speeds: Sequence[float]) -> tuple[range, ...]:
    """Positions of each rank's pairs; `speeds` are pairs per second by rank. Equally fast ranks share evenly.

    No other division ends earlier. Where two ranks would end a further pair at the same time, the faster one takes it.
    """
    if max(speeds) <= min(speeds) * (1 + EQUALLY_FAST):
        speeds = [1.0] * len(speeds)
    total = sum(speeds)
    # A rank never takes less than its whole part of the exact share.
    sizes = [int(pairs * speed / total) for speed in speeds]
    for _ in range(pairs - sum(sizes)):
        first = min(range(len(sizes)), key=lambda rank: ((sizes[rank] + 1) / speeds[rank], -speeds[rank]))
        sizes[first] += 1
    ends = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
    return tuple(range(end - size, end) for end, size in zip(ends, sizes, strict=True))


def smoothed_speeds(before: Sequence[float] | None, measured: Sequence[float | None]) -> list[float] | None:
    """Speeds after another update; a rank without a measurement, because it had no rows, moves towards the average.

    Half of each measurement, because single updates are disturbed by other load. None: no rank was measured.
    """
    known = [speed for speed in measured if speed]
    if not known:
        return None if before is None else list(before)
    mean = sum(known) / len(known)
    old = list(before) if before is not None else [speed or mean for speed in measured]
    return [(one + (new or mean)) / 2 for one, new in zip(old, measured, strict=True)]
