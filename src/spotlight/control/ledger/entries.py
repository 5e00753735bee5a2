"""Rows of the ledger: one entry per sample, in groups and batches. Only the Ledger changes them."""

from collections.abc import Sequence

from spotlight.control.ledger.states import SampleState
from spotlight.core.events import Accepted
from spotlight.core.types import WorkerId
from spotlight.core.work import Request, RequestId, Work


class Group:
    """All samples of one kind for one prompt of an iteration."""

    __slots__ = ("alive", "members", "number", "outstanding", "position", "trained")

    def __init__(self, number: int, position: int | None) -> None:
        self.number = number
        self.position = position
        """Position in the prompt order; None for work that is never trained on."""
        self.members: list[Entry] = []
        self.outstanding = 0
        """Members that are queued or leased."""
        self.alive = 0
        """Members that are not dropped."""
        self.trained = False

    def survivors(self) -> list["Entry"]:
        return [entry for entry in self.members if entry.state is not SampleState.DROPPED]


class Batch:
    """All requests of one kind for one iteration, in issue order."""

    __slots__ = ("entries", "groups", "iteration", "outstanding", "positions", "work")

    def __init__(self, iteration: int, work: Work, positions: Sequence[int]) -> None:
        self.iteration = iteration
        self.work = work
        self.positions = tuple(positions)
        self.entries: dict[RequestId, Entry] = {}
        self.groups: dict[int, Group] = {}
        self.outstanding = 0

    def add(self, request: Request, request_id: RequestId) -> "Entry":
        group = self.groups.get(request.group)
        if group is None:
            position = self.positions[request.group] if self.positions else None
            group = self.groups[request.group] = Group(request.group, position)
        entry = Entry(request, request_id, self, group)
        group.members.append(entry)
        group.outstanding += 1
        group.alive += 1
        self.entries[request_id] = entry
        self.outstanding += 1
        return entry

    def forget(self, entry: "Entry") -> None:
        del self.entries[entry.id]
        entry.group.members.remove(entry)


class Entry:
    """One sample: its state, the worker that holds it, and its result."""

    __slots__ = ("accepted", "attempt", "batch", "group", "holder", "id", "origin", "request", "state", "step")

    def __init__(self, request: Request, request_id: RequestId, batch: Batch, group: Group) -> None:
        self.request = request
        self.id = request_id
        self.batch = batch
        self.group = group
        self.state = SampleState.QUEUED
        self.attempt = 0
        """Number of the latest attempt, live while the sample is leased."""
        self.origin = 0
        """The last attempt that started at step 0: what earlier ones made was given up."""
        self.holder: WorkerId | None = None
        self.step = 0
        """Step at which the live attempt started, or the next one starts."""
        self.accepted: Accepted | None = None

    def is_settled(self) -> bool:
        """True if only a restore can still change the state."""
        if self.state in (SampleState.TRAINED, SampleState.DROPPED):
            return True
        return self.state is SampleState.ACCEPTED and self.request.work is not Work.ROLLOUT
