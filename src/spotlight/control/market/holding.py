"""Maps a recorded market to the nodes of a run: counts and foreign names become spot-1 .. spot-n, at most n.

The run requests n nodes and takes all that it can get.
- A node that joins gets the lowest free number.
- When a *count* falls below the number of held nodes, the node that joined last is lost first; of nodes that joined
  together, the one with the highest number. Lifetimes are heavy-tailed, so a long-held node is likelier to stay, and
  the rule needs no random numbers. It favours old nodes; a random choice is the opposite extreme.
- Of *named* nodes, the named one is lost. Nodes beyond n wait, first come first served, and replace a lost node at the
  same instant.

Invariant: exactly min(n, obtainable) nodes are up at any instant (tests/unit/test_market_traces.py).
"""

import itertools
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import msgspec

from spotlight.control.market.recorded import Counts, NodeChanges

NAME = "spot-{}"
"""Name of a run's spot node."""


class HeldNodeChange(msgspec.Struct, frozen=True):
    """One of the run's nodes joins or is lost."""

    time_s: float
    node: str
    came: bool


def hold(recorded: Counts | NodeChanges, nodes: int | None) -> Iterator[HeldNodeChange]:
    """Yield the changes for a run that requests `nodes` nodes (None: all)."""
    if isinstance(recorded, Counts):
        yield from _hold_counts(recorded, nodes if nodes is not None else max(n for _, n in recorded.steps))
    else:
        yield from _hold_named(recorded, nodes if nodes is not None else len(recorded.events))


def _hold_counts(counts: Counts, nodes: int) -> Iterator[HeldNodeChange]:
    held: list[int] = []
    """Numbers of the held nodes, by join time."""
    for time_s, steps in groupby(counts.steps, key=lambda step: step[0]):
        # The last of several counts at one instant applies.
        wanted = min([count for _, count in steps][-1], nodes)
        while len(held) > wanted:
            yield HeldNodeChange(time_s, NAME.format(held.pop()), came=False)
        for number in _free(held, wanted - len(held)):
            held.append(number)
            yield HeldNodeChange(time_s, NAME.format(number), came=True)


def _hold_named(changes: NodeChanges, nodes: int) -> Iterator[HeldNodeChange]:
    held: dict[str, int] = {}
    waiting: list[str] = []
    for time_s, events in groupby(changes.events, key=lambda event: event.time_s):
        for event in events:
            if event.came:
                waiting.append(event.node)
            elif event.node in held:
                yield HeldNodeChange(time_s, NAME.format(held.pop(event.node)), came=False)
            else:
                waiting.remove(event.node)
        for number in _free(held.values(), min(len(waiting), nodes - len(held))):
            held[waiting.pop(0)] = number
            yield HeldNodeChange(time_s, NAME.format(number), came=True)


def _free(taken: Iterable[int], count: int) -> list[int]:
    """The lowest `count` numbers from 1 that are not taken."""
    used = set(taken)
    return list(islice((number for number in itertools.count(1) if number not in used), max(count, 0)))
