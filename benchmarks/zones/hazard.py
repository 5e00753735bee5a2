"""Losses per node-hour by age of the node, in recorded traces."""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path

from benchmarks.lib.figures import Figure
from spotlight.control.market.traces import Trace

AGES_MIN = (0, 30, 60, 120, 240, inf)


def hazards_of(sources: Sequence[str]) -> dict[str, Figure]:
    """One figure per trace and age; nodes that are up at the beginning of a trace are of age 0 there."""
    found: dict[str, Figure] = {}
    for source in sources:
        trace = Trace.load(source)
        stays = [
            ((trace.seconds if stay.lost_s is None else stay.lost_s) - stay.start_s, stay.lost_s is not None)
            for stay in trace.stays()
        ]
        for young, old in pairwise(AGES_MIN):
            low_s, high_s = young * 60, old * 60
            hours = sum(max(0.0, min(length_s, high_s) - low_s) for length_s, _ in stays) / 3600
            lost = sum(is_lost and low_s <= length_s < high_s for length_s, is_lost in stays)
            name = f"hazard, {Path(source).name.partition('.')[0]}, from {young:g} min"
            found[name] = Figure.single(lost / hours if hours else 0.0, "losses per node-hour")
    return found
