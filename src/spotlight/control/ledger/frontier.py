"""Arithmetic of the frontier: which prompts are trained, as a position and the holes before it.

Positions count along the run's endless prompt order. Only training moves the frontier; what was merely issued is passed
to `next_positions` as `claimed` and leaves no trace here, so the cursor cannot run ahead of training. Invariant: a
frontier stands for exactly the set of positions trained, and equal sets have equal frontiers
(tests/property/test_ledger_property.py).

    advance(Frontier(), [0, 1, 4])       -> Frontier(position=5, holes=(2, 3))
    next_positions(that, 3, claimed={2}) -> (3, 5, 6)
"""

from collections.abc import Collection, Iterable

from spotlight.control.ledger.states import InvariantBroken
from spotlight.core.types import Frontier


def is_trained(frontier: Frontier, position: int) -> bool:
    return 0 <= position < frontier.position and position not in frontier.holes


def advance(frontier: Frontier, trained: Iterable[int]) -> Frontier:
    """The frontier once these positions are trained too; training one a second time is an error."""
    holes = set(frontier.holes)
    position = frontier.position
    for place in sorted(trained):
        if place >= position:
            holes.update(range(position, place))
            position = place + 1
        elif place in holes:
            holes.remove(place)
        else:
            raise InvariantBroken(
                f"prompt position {place} is trained already or is no position (frontier: {frontier.position} with "
                f"{len(frontier.holes)} holes); a position is trained once; report this as a bug."
            )
    return Frontier(position, tuple(sorted(holes)))


def next_positions(frontier: Frontier, count: int, claimed: Collection[int] = ()) -> tuple[int, ...]:
    """The first `count` positions that are neither trained nor claimed by work in progress: holes first."""
    chosen = [hole for hole in frontier.holes if hole not in claimed][:count]
    place = frontier.position
    while len(chosen) < count:
        if place not in claimed:
            chosen.append(place)
        place += 1
    return tuple(chosen)
