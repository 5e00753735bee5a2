"""What a worker decides, without threads, sockets, tensors or clocks; its process and the simulator both drive it.

`live` is a generator. It yields an effect that takes time; the driver carries it out and sends its completion back:

    Wait     until a message is there, or the seconds have passed          -> None
    RunStep  one denoising step of the engine                              -> StepDone, or CrewProblem if the crew broke
    Connect  to the other members of a crew                                -> CrewProblem or None
    Follow   a leader's forward                                            -> CrewProblem or None
    weights  effects of `LoadingCore`                                      -> see there
    Obey     an order to the training role                                 -> its reply, or None
    Exit     the process ends

    joined -> [messages applied -> rows offered -> Wait or RunStep] ... -> Exit

Between two effects it applies the messages that have arrived, in order. Invariants (tests/unit/test_worker_core.py,
storms): rows are offered once per change; a follower keeps no sample of its own; a sample leaves with its whole flight
before the worker trains or exits; an attempt that was fenced or discarded sends nothing more.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.errors import SpotlightError
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, RequestId, Work
from spotlight.node.loading_core import LoadEffect, LoadingCore
from spotlight.node.membership import Connect, CrewProblem, Follow, Membership
from spotlight.node.step_speed import StepSpeed
from spotlight.node.unloading import CommitFrame

_read_flights = msgspec.msgpack.Decoder(dict[str, bytes]).decode

TrainingOrder: TypeAlias = m.FormGang | m.Train | m.Publish | m.Save | m.Restore
ACTIVITIES: Mapping[Work, Activity] = {
    Work.ROLLOUT: Activity.ROLLOUT,
    Work.AUDIT: Activity.ROLLOUT,
    Work.EVALUATION: Activity.EVALUATION,
    Work.PREVIEW: Activity.PREVIEW,
}
"""Activity that a step of this work is reported as."""
ORDERED: Mapping[type[TrainingOrder], Activity] = {
    m.FormGang: Activity.LOAD,
    m.Train: Activity.TRAIN,
    m.Publish: Activity.PUBLISH,
    m.Save: Activity.PUBLISH,
    m.Restore: Activity.LOAD,
}
"""Activity that an order to the training role is reported as."""


class CommittedRow(Protocol):
    """A sample at a step boundary; the flight is None before its first step."""

    @property
    def request(self) -> RequestId: ...
    @property
    def attempt(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def flight(self) -> bytes | None: ...
    @property
    def since(self) -> int: ...


class Rows(Protocol):
    """The samples of an engine; none of these calls takes long."""

    @property
    def rows(self) -> int: ...
    @property
    def free_rows(self) -> int: ...

    def admit(self, lease: m.Granted, flight: bytes | None) -> None:
        """Start a sample, or continue its flight; raises SpotlightError if that is not possible."""

    def withdraw(self, request: RequestId) -> CommittedRow | None:
        """Remove an attempt and return it with its whole flight; None if it is not here."""

    def fence(self, request: RequestId, attempt: int) -> object:
        """Drop an attempt that is no longer current."""

    def discard(self, work: Work) -> object:
        """Drop every sample of this kind of work."""

    def progress(self) -> Sequence[m.Progress]: ...


class Links(Protocol):
    """Messages in and out."""

    def take(self) -> tuple[m.AnyMessage, bytes] | None:
        """The next message that has arrived."""

    def send(self, message: m.AnyMessage, blob: bytes = b"") -> None: ...

    def commit(self, commits: Sequence[CommitFrame]) -> None:
        """Store and send after the results of the steps before."""

    def deliver(self, finished: Sequence[Any]) -> None:
        """Decode and send finished samples, while the next steps run."""


class FailedRow(NamedTuple):
    """A sample that the engine could not continue, and has dropped."""

    request: RequestId
    attempt: int
    problem: str


class StepDone(NamedTuple):
    """Completion of a step."""

    rows: int
    seconds: float
    """Seconds of one step; 0 if it was not measured."""
    finished: Sequence[Any] = ()
    commits: Sequence[CommittedRow] = ()
    failed: Sequence[FailedRow] = ()


class Wait(NamedTuple):
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RunStep:
    pass


@dataclass(frozen=True, slots=True)
class Obey:
    order: TrainingOrder


@dataclass(frozen=True, slots=True)
class Exit:
    pass


Effect: TypeAlias = Wait | RunStep | Connect | Follow | LoadEffect | Obey | Exit
Life: TypeAlias = Generator[Effect, Any, None]
_STEP, _WAIT, _EXIT = RunStep(), Wait(), Exit()


class WorkerCore:
    """One worker's decisions; `live` runs once."""

    def __init__(
        self, me: WorkerId, hello: m.Hello, engine: Rows, crew: Membership, loading: LoadingCore, links: Links
    ) -> None:
        self._me = me
        self._hello = hello
        self._engine = engine
        self._crew = crew
        self._loading = loading
        self._links = links
        self.rolls_out = True
        """Whether its model can roll out: that of a rank with a share of the weights cannot."""
        self.pulls = True
        """Whether it pulls rollouts: False from a Train order until the iteration's last update, unless updates come in
        parts."""
        self.epoch = 0
        """Gang that this worker joined last."""
        self._offered_rows = 0
        self._offered_degree = 1
        self._grants = 0
        self._pulls = 0
        self._speed = StepSpeed()

    def live(self) -> Life:
        self._links.send(self._hello)
        take, engine, crew, requests = self._links.take, self._engine, self._crew, self._loading.requests
        while True:
            while (arrived := take()) is not None:
                message, blob = arrived
                if isinstance(message, m.Grant):
                    self._admit(message, blob)
                else:
                    yield from self._apply(message, blob)
            if requests and not self._loading.seconds_left():
                yield from self._loading.expire()
                continue
            paused_s = crew.seconds_paused()
            self._pull()
            if paused_s:
                yield self._wait(paused_s)
            elif engine.free_rows == engine.rows:
                yield self._wait(None) if requests else _WAIT
            else:
                done: StepDone | CrewProblem = yield _STEP
                if isinstance(done, StepDone):
                    self._stepped(done)
                else:
                    # No sample has advanced: the same step is repeated, alone or in the crew that the agent orders.
                    crew.broke(done)

    def _wait(self, seconds: float | None) -> Wait:
        """Wait until the seconds have passed or a neighbour's offer is overdue."""
        if not self._loading.requests:
            return Wait(seconds)
        left = self._loading.seconds_left()
        return Wait(left if seconds is None else min(seconds, left))

    def alive(self, spans: tuple[m.Span, ...]) -> m.Alive:
        """A heartbeat; may be called from another thread."""
        degree = self._crew.degree
        gain = self._speed.gain(degree) if degree > 1 else None
        return m.Alive(progress=tuple(self._engine.progress()), spans=spans, gain=gain)

    def _stepped(self, done: StepDone) -> None:
        self._speed.record(done.rows, self._engine.rows, self._crew.degree, done.seconds)
        if done.commits:
            self._links.commit([(commit_of(row), row.flight or b"") for row in done.commits])
        if done.finished:
            self._links.deliver(done.finished)
        for failed in done.failed:
            self._links.send(m.Failed(problem=failed.problem, request=failed.request, attempt=failed.attempt))
            self._offered_rows = 0

    def _pull(self) -> None:
        """Offer the free rows; a follower offers none, because its leader uses its time.

        A leader whose crew ends offers them again: the controller has the crew's speed.
        """
        follows, degree = self._crew.follows, self._crew.degree
        free = self._engine.free_rows if self.pulls and not follows and self.rolls_out else 0
        if (free != self._offered_rows and (free or follows)) or (free and degree != self._offered_degree):
            self._pulls += 1
            pull = m.Pull(
                free_rows=free,
                row_steps_per_s=self._speed.row_steps_per_s(degree),
                saturating_rows=self._speed.saturating_rows(),
                answered=self._grants,
                number=self._pulls,
            )
            self._links.send(pull)
            self._offered_rows, self._offered_degree = free, degree

    def _apply(self, message: m.AnyMessage, blob: bytes) -> Life:
        match message:
            case m.Load() if not self.rolls_out:
                # It applies no published set; the agent may delete the files that were retired before this one.
                self._links.send(m.Held(weights=message.weights, digest=message.digest))
            case crews.Adopt() if not self.rolls_out:
                pass
            case m.Recall():
                for request in message.requests:
                    self._hand_back(request)
            case m.Discard():
                self._engine.discard(message.work)
                self._offered_rows = 0
            case m.Fenced():
                self._engine.fence(message.request, message.attempt)
                self._offered_rows = 0
            case crews.Prepare() | crews.Form() | crews.Disband() | crews.Forward():
                yield from self._crew.apply(message)
            case m.FormGang() | m.Train() | m.Publish() | m.Save() | m.Restore():
                yield from self._train(message)
            case m.Drain():
                self._hand_back_all()
                yield _EXIT
            case _:
                yield from self._loading.apply(message, blob)

    def _admit(self, grant: m.Grant, blob: bytes) -> None:
        self._grants += 1
        flights = _read_flights(blob) if blob else {}
        for lease in grant.leases:
            try:
                self._engine.admit(lease, flights.get(lease.request.id))
            except SpotlightError as error:
                code, request = error.exit_code, lease.request.id
                failed = m.Failed(problem=str(error), request=request, attempt=lease.attempt, exit_code=code)
                self._links.send(failed)
            else:
                if self._crew.follows:
                    # The grant crossed the order to follow; a follower has no samples of its own.
                    self._hand_back(lease.request.id)
        self._offered_rows = 0

    def _train(self, order: TrainingOrder) -> Life:
        if not self._hello.trains:
            raise TypeError(f"{self._me} was ordered to {type(order).__name__} but has no training role")
        if isinstance(order, m.FormGang):
            self.epoch = order.epoch
        if isinstance(order, m.FormGang | m.Train | m.Save):
            # Other workers continue them: a snapshot may take long, and a worker that keeps recalled samples counts as
            # dead.
            self._hand_back_all()
        if isinstance(order, m.Train):
            # Between the parts of an update the trainer may assist with rollouts.
            self.pulls = order.last or order.samples is not None
        if isinstance(order, m.Publish):
            # The controller has withdrawn the pull: rows that it granted now would wait for this order.
            self._offered_rows = 0
        reply: m.AnyMessage | None = yield Obey(order)
        if isinstance(order, m.Publish) and self.rolls_out and isinstance(reply, m.PublishedWeights | None):
            # Every rank has the weights that rank 0 wrote.
            yield from self._loading.published(order.weights[0])
        if reply is not None:
            self._links.send(reply)

    def _hand_back_all(self) -> None:
        for progress in self._engine.progress():
            self._hand_back(progress.request)
        self._offered_rows = 0

    def _hand_back(self, request: RequestId) -> None:
        row = self._engine.withdraw(request)
        self._offered_rows = 0
        if row is not None:
            message = m.HandBack(request=request, attempt=row.attempt, step=row.step)
            self._links.commit([(message, row.flight or b"")])


def commit_of(row: CommittedRow) -> m.Commit:
    return m.Commit(request=row.request, attempt=row.attempt, step=row.step, since=row.since)
