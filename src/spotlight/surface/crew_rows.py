"""Crews of a run over time: slots in crews by degree, and every regroup.

Invariant: a slot is counted from the report of its crew until the report of the crew's end, the loss of its node or the
end of the controller (tests/unit/test_crews_shown.py).
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from spotlight.core.events import Crewing, NodeLost, Record, RunResumed, RunStopped
from spotlight.core.types import WorkerId


class Regrouped(msgspec.Struct, kw_only=True):
    """One change of a node's layout that formed crews."""

    at: float
    node: str
    epoch: int
    degrees: tuple[int, ...]
    """Degrees of the node's crews after it, largest first."""
    seconds: float
    """Seconds from the loss or the decision until its last crew was ready."""
    reason: str


class CrewView(msgspec.Struct, kw_only=True):
    """Present crews, and what changed them."""

    now: dict[str, tuple[tuple[WorkerId, ...], ...]] = {}
    """Crews by node."""
    changes: list[tuple[float, dict[int, int]]] = []
    """Slots in crews by degree, each from its time on."""
    formed: dict[int, int] = {}
    """Number of crews formed, by degree."""
    regroups: list[Regrouped] = []
    newest: dict[str, int] = {}
    """Place of each node's newest regroup."""

    def apply(self, record: Record) -> None:
        match record.event:
            case Crewing() as crewing:
                self._regroup(crewing, record.at)
            case NodeLost(node=node) if node in self.now:
                del self.now[node]
            case RunResumed() | RunStopped() if self.now:
                self.now.clear()
            case _:
                return
        slots = Counter(len(crew) for crews in self.now.values() for crew in crews for _ in crew)
        if self.changes and self.changes[-1][0] == record.at:
            self.changes.pop()
        self.changes.append((record.at, dict(slots)))

    def slots_over(self, end: float, bins: int) -> list[dict[int, float]]:
        """Mean number of slots in crews by degree, in equal parts of the time until `end`."""
        means: list[dict[int, float]] = [{} for _ in range(bins)]
        width = end / bins
        ends = [at for at, _ in self.changes[1:]] + [end]
        for (start, slots), stop in zip(self.changes, ends, strict=True):
            for number in range(int(start / width), min(bins, math.ceil(stop / width))):
                share = (min(stop, (number + 1) * width) - max(start, number * width)) / width
                for degree, count in slots.items():
                    means[number][degree] = means[number].get(degree, 0.0) + count * max(0.0, share)
        return means

    def _regroup(self, crewing: Crewing, at: float) -> None:
        before = self.now.pop(crewing.node, ())
        if crewing.crews:
            self.now[crewing.node] = crewing.crews
        formed = [len(crew) for crew in crewing.crews if crew not in before]
        if not formed:
            return
        for degree in formed:
            self.formed[degree] = self.formed.get(degree, 0) + 1
        regrouped = Regrouped(
            at=at,
            node=crewing.node,
            epoch=crewing.epoch,
            degrees=_degrees(crewing.crews),
            seconds=crewing.seconds,
            reason=crewing.reason,
        )
        # A layout of several crews is reported as each of them is ready.
        newest = self.newest.get(crewing.node)
        if newest is not None and self.regroups[newest].epoch == crewing.epoch:
            self.regroups[newest] = regrouped
        else:
            self.newest[crewing.node] = len(self.regroups)
            self.regroups.append(regrouped)


def _degrees(crews: Sequence[Sequence[WorkerId]]) -> tuple[int, ...]:
    return tuple(sorted(map(len, crews), reverse=True))
