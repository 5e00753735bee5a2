"""Spare processes: where workers are not forked from imported modules, each node keeps one that has imported them.

    WAITING --due, and few other spares are warming--> WARMING --imports done, device open--> READY
       ^                                                  |                                     |
       `------------- its process ended, back-off --------+-------------------------------------'

    any state --Spawn--> (none: the process is the worker)        any state --end of the agent--> (none)

A spare that still imports is at least as far as a fresh process, so a `Spawn` takes it too. The next one starts when
the agent requests it, after its workers are up, and one spare per CORES_PER_SPARE cores of the machine warms at a time:
their imports would compete with those of workers, and a process that has lowered its priority cannot raise it again.

`Spares` decides, and takes time as an argument (tests/unit/test_spare_states.py); the nursery owns the processes.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf

from spotlight.node.nursery_packets import KeepSpare

PAUSE_FIRST_S = 1.0
PAUSE_MOST_S = 300.0
"""The pause doubles per spare that ended early, so that one that cannot start does not use up the CPU."""
STABLE_S = 60.0
"""A spare that lived this long did not fail to start."""
CORES_PER_SPARE = 4
WARMING_MOST_S = 120.0
"""Time limit for a spare that warms to delay those of other nodes."""


class SpareState(Enum):
    WAITING = "waiting"
    WARMING = "warming"
    READY = "ready"


@dataclass
class Spare:
    """The spare of one node."""

    order: KeepSpare
    since: float
    """Start of its process, or of its pause."""
    state: SpareState = SpareState.WAITING
    pause_s: float = 0.0
    pid: int | None = None


class Spares:
    """At most one spare per node; nodes are known by their process group."""

    def __init__(self, cores: int = 1) -> None:
        self._of: dict[int, Spare] = {}
        self._at_once = max(1, cores // CORES_PER_SPARE)

    def keep(self, node: int, order: KeepSpare, now: float) -> None:
        """Keep a spare for this node; a no-op if it has one already."""
        self._of.setdefault(node, Spare(order, now))

    def due(self, now: float) -> tuple[int, KeepSpare] | None:
        """A node whose spare is to be started now."""
        if self._free_at() > now:
            return None
        waiting = ((node, spare) for node, spare in self._of.items() if spare.state is SpareState.WAITING)
        return next(((node, spare.order) for node, spare in waiting if now >= spare.since + spare.pause_s), None)

    def wait_s(self, now: float) -> float | None:
        """Seconds until a spare may be due; None: not before the next call."""
        starts = [each.since + each.pause_s for each in self._of.values() if each.state is SpareState.WAITING]
        if not starts:
            return None
        return max(0.0, min(starts) - now, self._free_at() - now)

    def started(self, node: int, pid: int, now: float) -> None:
        spare = self._of[node]
        spare.state, spare.since, spare.pid = SpareState.WARMING, now, pid

    def ready(self, pid: int) -> None:
        for spare in self._of.values():
            if spare.pid == pid:
                spare.state = SpareState.READY

    def take(self, node: int) -> int | None:
        """The process that becomes a worker, if there is one; the node has no spare until the next `keep`."""
        spare = self._of.pop(node, None)
        return spare.pid if spare is not None else None

    def ended(self, pid: int, now: float) -> float | None:
        """After the end of a process: the pause until the next one, or None if it was no spare."""
        node = next((node for node, spare in self._of.items() if spare.pid == pid), None)
        return self.failed(node, now) if node is not None else None

    def failed(self, node: int, now: float) -> float:
        """After a spare ended or could not be started: back off, and return the pause."""
        spare = self._of[node]
        is_stable = spare.state is not SpareState.WAITING and now - spare.since > STABLE_S
        spare.pause_s = PAUSE_FIRST_S if is_stable else min(max(PAUSE_FIRST_S, 2 * spare.pause_s), PAUSE_MOST_S)
        spare.state, spare.since, spare.pid = SpareState.WAITING, now, None
        return spare.pause_s

    def forget(self, node: int) -> None:
        """Keep no spare for a node that has ended."""
        self._of.pop(node, None)

    def _free_at(self) -> float:
        """Time from which another spare may warm, at the latest."""
        warming = [each.since + WARMING_MOST_S for each in self._of.values() if each.state is SpareState.WARMING]
        return sorted(warming)[-self._at_once] if len(warming) >= self._at_once else -inf
