"""Derived times of crews and gangs, which one machine with one GPU cannot measure, from those of one slot.

Invariant: derived series are marked as such, and a crew is faster than one slot by exactly the tabled speed-up
(tests/unit/test_profiles.py).
"""

from collections.abc import Sequence

from spotlight.control.elastic.efficiency import Efficiency
from spotlight.control.profiles.timings import Point, Provenance, Series

DEGREES = (2, 4, 8)
RANKS = (2, 4, 8, 12)
ALL_REDUCE_BYTES_PER_S = 150e9
"""Bandwidth of a ring all-reduce per rank; half of the published NVLink 4 figure, for messages of a few MB."""
ALL_REDUCE_LATENCY_S = 2e-5
"""Latency of one of the ring's 2 (ranks - 1) exchanges."""


def crews(alone: Sequence[Point], tokens: int, degrees: Sequence[int] = DEGREES) -> Series:
    """Return the denoising times of crews, from the points of one slot."""
    efficiency = Efficiency()
    points = tuple(
        Point(point.batch, degree, point.p50 / speed_up, point.p99 / speed_up)
        for degree in degrees
        for speed_up in [efficiency.speed_up(tokens, degree)]
        for point in alone
    )
    listed = ", ".join(f"{efficiency.speed_up(tokens, degree):.2f} at {degree}" for degree in degrees)
    return Series(
        provenance=Provenance.DERIVED,
        how=f"One slot's seconds over the tabled speed-up of a crew at {tokens} tokens (control/elastic): {listed}.",
        points=points,
    )


def gangs(alone: Point, gradient_bytes: int, degrees: Sequence[int] = RANKS) -> Series:
    """Return the optimizer step times of several ranks: one rank's, plus a ring all-reduce of the gradients."""
    points = []
    for ranks in degrees:
        volume = 2 * (ranks - 1) / ranks * gradient_bytes / ALL_REDUCE_BYTES_PER_S
        all_reduce = volume + 2 * (ranks - 1) * ALL_REDUCE_LATENCY_S
        points.append(Point(alone.batch, ranks, alone.p50 + all_reduce, alone.p99 + all_reduce))
    return Series(
        provenance=Provenance.DERIVED,
        how=f"One rank's seconds and a ring all-reduce of {gradient_bytes / 1e6:.0f} MB of gradients at "
        f"{ALL_REDUCE_BYTES_PER_S / 1e9:.0f} GB/s and {ALL_REDUCE_LATENCY_S * 1e6:.0f} us per exchange.",
        points=tuple(points),
    )
