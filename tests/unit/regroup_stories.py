"""A node whose workers reply at once, for tests of the regroup machine: events go in, actions come out."""

from collections.abc import Iterable

from spotlight.control.elastic.actions import Action, Kill, Refuse, Relay, Replan, ReportCrews, Send, WorkerMessage
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.regroup import Regroup
from spotlight.core.crew_messages import (
    Broke,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    ForwardDone,
    GroupToken,
    Prepare,
    Prepared,
)
from spotlight.core.types import NodeId, Size, Version, WorkerId
from spotlight.core.work import WeightsId

NODE = NodeId("spot-1.1")
A, B, C, D = (WorkerId(f"{NODE}/{number}.1") for number in range(4))
WEIGHTS = WeightsId(Version(3))


class Node:
    """A node whose time moves only by `later`."""

    def __init__(self, *workers: WorkerId, config: ElasticConfig | None = None) -> None:
        self.now = 0.0
        self.regroup = Regroup(NODE, "/store", config or ElasticConfig())
        self.sent: list[tuple[WorkerId, object]] = []
        for worker in workers:
            self.regroup.joined(worker, self.now)

    def later(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.note(self.regroup.tick(self.now))

    def note(self, actions: list[Action]) -> list[Action]:
        for action in actions:
            if isinstance(action, Send):
                self.sent.append((action.worker, action.message))
        return actions

    def wish(self, *crews: tuple[WorkerId, ...]) -> list[Action]:
        return self.note(self.regroup.wish(crews, "as requested", self.now))

    def receive(self, worker: WorkerId, message: WorkerMessage) -> list[Action]:
        return self.note(self.regroup.receive(worker, message, self.now))

    def gone(self, worker: WorkerId) -> list[Action]:
        return self.note(self.regroup.gone(worker, "SIGKILL", self.now))

    def prepared(self, worker: WorkerId, digest: str = "d", **fields: object) -> list[Action]:
        crew = next(crew for crew in self.regroup.layout if worker in crew)
        answer = {"members": crew, "holds": ((WEIGHTS, digest),), "needs": (WEIGHTS,), **fields}
        return self.receive(worker, Prepared(token=self.token(worker), **answer))

    def token(self, worker: WorkerId) -> GroupToken:
        token = self.regroup.token(worker)
        assert token is not None
        return token

    def prepare(self, *members: WorkerId) -> list[Action]:
        """All members reply; return the actions of the last reply."""
        actions: list[Action] = []
        for member in members:
            actions = self.prepared(member)
        return actions

    def connect(self, *members: WorkerId) -> list[Action]:
        actions: list[Action] = []
        for member in members:
            actions = self.receive(member, Formed(token=self.token(member)))
        return actions

    def serve(self, *members: WorkerId) -> GroupToken:
        """Bring these workers from a wish to a crew that serves; other crews stay."""
        others = [crew for crew in self.regroup.crews if not set(crew) & set(members)]
        self.wish(members, *others)
        self.prepare(*members)
        self.connect(*members)
        assert members in self.regroup.crews
        return self.token(members[0])

    def forward(self, leader: WorkerId, number: int = 0, tokens: int = 1024) -> list[Action]:
        return self.receive(leader, a_forward(self.token(leader), number, tokens))

    def done(self, worker: WorkerId, number: int = 0) -> list[Action]:
        return self.receive(worker, ForwardDone(token=self.token(worker), number=number))

    def broke(self, worker: WorkerId, token: GroupToken, waited_for: WorkerId | None = None) -> list[Action]:
        return self.receive(worker, Broke(token=token, problem="connection closed", waited_for=waited_for))

    def disbanded(self, worker: WorkerId, token: GroupToken) -> list[Action]:
        return self.receive(worker, Disbanded(token=token))


def a_forward(token: GroupToken, number: int = 0, tokens: int = 1024) -> Forward:
    return Forward(
        token=token,
        number=number,
        weights=WEIGHTS,
        digest="d",
        rows=1,
        tokens=tokens,
        channels=64,
        text_width=8,
        text_dimension=16,
        size=Size(512, 512),
    )


def orders(actions: Iterable[Action], kind: type[Prepare] | type[Form] | type[Disband]) -> list[WorkerId]:
    return [action.worker for action in actions if isinstance(action, Send) and isinstance(action.message, kind)]


def kills(actions: Iterable[Action]) -> list[WorkerId]:
    return [action.worker for action in actions if isinstance(action, Kill)]


def replans(actions: Iterable[Action]) -> list[str]:
    return [action.why for action in actions if isinstance(action, Replan)]


def refusals(actions: Iterable[Action]) -> list[str]:
    return [action.why for action in actions if isinstance(action, Refuse)]


def reports(actions: Iterable[Action]) -> list[tuple[tuple[WorkerId, ...], ...]]:
    return [action.crewed.crews for action in actions if isinstance(action, ReportCrews)]


def relayed(actions: Iterable[Action]) -> list[WorkerId]:
    return [worker for action in actions if isinstance(action, Relay) for worker in action.workers]
