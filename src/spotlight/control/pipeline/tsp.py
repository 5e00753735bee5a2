"""TSP, time-step parallelism: the (sample, timestep) pairs of an update share forwards, whatever their timesteps.

A pair is plain data, so any batch of pairs, in any order, is a legal micro-batch. Without TSP (`batches_over: samples`)
a batch holds one timestep of many samples, and small parts of an update make small batches, which are bound by kernel
launches. The order of accumulation is by sample, never by arrival, and the gradient does not depend on the batches
(tests/property/test_trainer_property.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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
