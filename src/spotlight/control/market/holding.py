"""Which nodes a run would hold in a recorded market: counts and foreign names become spot-1 .. spot-n, n at most.

The rule: a run asks for n nodes and takes what it can get.
- A node that comes takes the lowest free number.
- When a *count* falls below what is held, whoever came last goes first; of those that came together, the highest
  number. Lives are heavy-tailed, so a machine that has been held for long is the likelier to be kept, and the rule
  needs no dice. It is the kind choice for the old ones: choose victims at random by hand to see the other end.
- Of *named* nodes, one that goes is that one. Nodes beyond n wait, first come first served, and one of them takes over
  at the very instant that a number falls free.

Invariant: at most n nodes are up, and exactly min(n, obtainable) at any instant (tests/unit/test_market_traces.py).
"""

import itertools
from collections.abc import Iterable, Iterator
from itertools import groupby, islice

import msgspec

from spotlight.control.market.recorded import Comings, Counts

NAME = "spot-{}"
"""As a run names its spot nodes."""


class Turn(msgspec.Struct, frozen=True):
    """One of the run's nodes comes, or goes."""

    time_s: float
    node: str
    came: bool


def hold(recorded: Counts | Comings, nodes: int | None) -> Iterator[Turn]:
    """What a run that wants `nodes` nodes (all, if None) sees of the market."""
    if isinstance(recorded, Counts):
        yield from _hold_counts(recorded, nodes if nodes is not None else max(n for _, n in recorded.steps))
    else:
        yield from _hold_named(recorded, nodes if nodes is not None else len(recorded.events))


def _hold_counts(counts: Counts, nodes: int) -> Iterator[Turn]:
    held: list[int] = []
    """In the order of coming."""
    for time_s, steps in groupby(counts.steps, key=lambda step: step[0]):
        # Of several counts at one instant the last holds.
        wanted = min([count for _, count in steps][-1], nodes)
        while len(held) > wanted:
            yield Turn(time_s, NAME.format(held.pop()), came=False)
        for number in _free(held, wanted - len(held)):
            held.append(number)
            yield Turn(time_s, NAME.format(number), came=True)


def _hold_named(comings: Comings, nodes: int) -> Iterator[Turn]:
    held: dict[str, int] = {}
    waiting: list[str] = []
    for time_s, events in groupby(comings.events, key=lambda event: event.time_s):
        for event in events:
            if event.came:
                waiting.append(event.node)
            elif event.node in held:
                yield Turn(time_s, NAME.format(held.pop(event.node)), came=False)
            else:
                waiting.remove(event.node)
        for number in _free(held.values(), min(len(waiting), nodes - len(held))):
            held[waiting.pop(0)] = number
            yield Turn(time_s, NAME.format(number), came=True)


def _free(taken: Iterable[int], count: int) -> list[int]:
    """The lowest `count` numbers from 1 that are not taken."""
    used = set(taken)
    return list(islice((number for number in itertools.count(1) if number not in used), max(count, 0)))
