"""What the ledger writes down: one entry per sample, gathered into groups and batches. Mutated by the Ledger alone."""

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
        """Place in the prompt order; None for what never trains."""
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
    """One sample: where it is, whose it is, and its result."""

    __slots__ = ("accepted", "attempt", "batch", "group", "holder", "id", "request", "state", "step")

    def __init__(self, request: Request, request_id: RequestId, batch: Batch, group: Group) -> None:
        self.request = request
        self.id = request_id
        self.batch = batch
        self.group = group
        self.state = SampleState.QUEUED
        self.attempt = 0
        """The latest one, live while the sample is leased."""
        self.holder: WorkerId | None = None
        self.step = 0
        """Where the live attempt set out from."""
        self.accepted: Accepted | None = None

    def is_settled(self) -> bool:
        """Whether nothing but a restore can change it any more."""
        if self.state in (SampleState.TRAINED, SampleState.DROPPED):
            return True
        return self.state is SampleState.ACCEPTED and self.request.work is not Work.ROLLOUT
