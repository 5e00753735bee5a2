"""Arithmetic of the frontier: the trained prompts, as a position and the holes before it.

Positions count along the run's endless prompt order. Only training moves the frontier; issued positions are passed to
`next_positions` as `claimed` and are not stored here, so the cursor cannot run ahead of training. Invariant: a
frontier represents exactly the set of trained positions, and equal sets have equal frontiers
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
    """Return the frontier after training these positions; raise InvariantBroken for one that is trained already."""
    holes = set(frontier.holes)
    end = frontier.position
    for position in sorted(trained):
        if position >= end:
            holes.update(range(end, position))
            end = position + 1
        elif position in holes:
            holes.remove(position)
        else:
            raise InvariantBroken(
                f"prompt position {position} is trained already or is not a position (frontier: {frontier.position} "
                f"with {len(frontier.holes)} holes), and a position is trained once; report this as a bug."
            )
    return Frontier(end, tuple(sorted(holes)))


def next_positions(frontier: Frontier, count: int, claimed: Collection[int] = ()) -> tuple[int, ...]:
    """Return the first `count` positions that are neither trained nor claimed by work in progress: holes first."""
    chosen = [hole for hole in frontier.holes if hole not in claimed][:count]
    position = frontier.position
    while len(chosen) < count:
        if position not in claimed:
            chosen.append(position)
        position += 1
    return tuple(chosen)
