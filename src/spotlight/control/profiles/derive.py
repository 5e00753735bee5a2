"""Figures that one machine with one GPU cannot measure: crews and gangs, from what one slot does.

Invariant: what is derived is marked so, and a crew is quicker than one slot by exactly the tabled speed-up
(tests/unit/test_profiles.py).
"""

from collections.abc import Sequence

from spotlight.control.elastic.efficiency import Efficiency
from spotlight.control.profiles.timings import Point, Provenance, Series

DEGREES = (2, 4, 8)
RANKS = (2, 4, 8, 12)
ALL_REDUCE_BYTES_PER_S = 150e9
"""Of one rank's gradients around a ring; half of what NVLink 4 is published to reach, for messages of a few MB."""
ALL_REDUCE_LATENCY_S = 2e-5
"""Of one of the ring's 2 (ranks - 1) exchanges."""


def crews(alone: Sequence[Point], tokens: int, degrees: Sequence[int] = DEGREES) -> Series:
    """Denoising by crews, from the points of one slot."""
    efficiency = Efficiency()
    points = tuple(
        Point(point.batch, degree, point.p50 / speed_up, point.p99 / speed_up)
        for degree in degrees
        for speed_up in [efficiency.speed_up(tokens, degree)]
        for point in alone
    )
    told = ", ".join(f"{efficiency.speed_up(tokens, degree):.2f} at {degree}" for degree in degrees)
    return Series(
        provenance=Provenance.DERIVED,
        how=f"One slot's seconds over the tabled speed-up of a crew at {tokens} tokens (control/elastic): {told}.",
        points=points,
    )


def gangs(alone: Point, gradient_bytes: int, degrees: Sequence[int] = RANKS) -> Series:
    """The optimizer step of several ranks: one rank's, and a ring all-reduce of the gradients before it."""
    points = []
    for ranks in degrees:
        volume = 2 * (ranks - 1) / ranks * gradient_bytes / ALL_REDUCE_BYTES_PER_S
        joined = volume + 2 * (ranks - 1) * ALL_REDUCE_LATENCY_S
        points.append(Point(alone.batch, ranks, alone.p50 + joined, alone.p99 + joined))
    return Series(
        provenance=Provenance.DERIVED,
        how=f"One rank's seconds and a ring all-reduce of {gradient_bytes / 1e6:.0f} MB of gradients at "
        f"{ALL_REDUCE_BYTES_PER_S / 1e9:.0f} GB/s and {ALL_REDUCE_LATENCY_S * 1e6:.0f} us per exchange.",
        points=tuple(points),
    )
