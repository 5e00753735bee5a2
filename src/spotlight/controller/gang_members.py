"""The training slots of a run and the workers on them: which of them form the next gang.

A slot's candidate is its newest living worker. Ranks are numbered in the order of the slots, so the ranks of one node
are neighbours. An elastic gang does without the missing slots: at once if a rank of the last gang lives, and after the
time that a worker has to start otherwise.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from spotlight.core.types import WorkerId


@dataclass(frozen=True, kw_only=True)
class GangSettings:
    """Ranks of the gang and the limits of its orders."""

    timeout_s: float
    """Time limit of one order."""
    slots: tuple[str, ...] = ("reserved-1/0",)
    """Training slots, by rank, as `node/slot`."""
    start_s: float = inf
    """Time limit of the start of a worker."""
    elastic: bool = False
    """Whether fewer ranks train while some are missing."""

    @property
    def ranks(self) -> int:
        return len(self.slots)


def slot_of(worker: WorkerId) -> str:
    """The slot `reserved-1/0` of the worker `reserved-1.2/0.3`, whatever their incarnations."""
    node, _, place = worker.partition("/")
    return f"{node.rpartition('.')[0]}/{place.partition('.')[0]}"


def incarnation(worker: WorkerId) -> tuple[int, int]:
    """Incarnations of the node and of the worker, (2, 3) of `reserved-1.2/0.3`: higher ones are newer."""
    node, _, place = worker.partition("/")
    return int(node.rpartition(".")[2]), int(place.rpartition(".")[2])


class GangMembers:
    """Training workers by slot, the newest last, whatever the order in which their connections delivered them."""

    def __init__(self, settings: GangSettings) -> None:
        self._settings = settings
        self._joined: dict[str, list[WorkerId]] = {slot: [] for slot in settings.slots}
        self._kinds: dict[WorkerId, str] = {}
        self._complete_until: float | None = None
        """Time until which an elastic gang waits for all slots; None: not determined since the last gang."""

    def join(self, worker: WorkerId, kind: str) -> None:
        joined = self._joined.get(slot_of(worker))
        if joined is not None:
            joined[:] = sorted({*joined, worker}, key=incarnation)
            self._kinds[worker] = kind

    def keep(self, living: Collection[WorkerId]) -> None:
        """Forget dead workers; an older worker of a slot is its candidate again if a newer one goes."""
        for joined in self._joined.values():
            joined[:] = [worker for worker in joined if worker in living]

    def candidates(self) -> list[WorkerId]:
        """The newest living worker of each slot that has one, by rank."""
        return [joined[-1] for joined in self._joined.values() if joined]

    def lost(self, survivors: Sequence[WorkerId], now: float) -> None:
        """Record the loss of a gang: survivors of an elastic one go on at once."""
        self._complete_until = now if survivors else now + self._settings.start_s

    def next_gang(self, now: float) -> list[WorkerId]:
        """The workers that can form a gang now, by rank; empty: it waits for more."""
        candidates = self.candidates()
        if len(candidates) == self._settings.ranks:
            return candidates
        if self._complete_until is None:
            self._complete_until = now + self._settings.start_s
        return candidates if self._settings.elastic and now >= self._complete_until else []

    def missing(self) -> str:
        """What the gang waits for, with the logs that explain it."""
        slots = [slot for slot, joined in self._joined.items() if not joined]
        if len(self._joined) == 1:
            return "the training worker"
        logs = ", ".join(f"logs/{slot.replace('/', '.*-')}.*.log" for slot in slots)
        return f"{len(slots)} of {len(self._joined)} training ranks ({', '.join(slots)}; see {logs})"

    def kinds(self, workers: Collection[WorkerId]) -> Mapping[str, list[str]]:
        """Slots of these workers by device kind."""
        kinds: dict[str, list[str]] = {}
        for worker in workers:
            kinds.setdefault(self._kinds.get(worker, ""), []).append(slot_of(worker))
        return kinds
