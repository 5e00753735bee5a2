"""What a node's agent decides, without sockets, processes or files; its process and the simulator both drive it.

Messages, births and ends of workers, verdicts and copies come in as calls; `AgentEffects` go out. Messages are relayed
unchanged, except that bytes give way to references (`node/unloading.py`), `Result` gets its verdict, and `Load` a path
on this node; the workers that published those weights receive `Adopt` first. `WorkerSlots` has the states of slots,
`NodeCrews` those of crews.

Invariants (tests/unit/test_agent_core.py, tests/processes/test_pool.py, storms):
- `Gone` of a worker follows all its messages and precedes those of its successor. Only verdicts that take longer than
  VERDICTS_S come later, and do not count.
- A worker that is silent for too long is killed.
- A drained node starts no worker, and ends when its last one is gone.
- A node that cannot copy weights reports why and ends.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from spotlight.compute.rewards.combination import Verdict
from spotlight.core import crew_messages as cm
from spotlight.core import messages as m
from spotlight.core.clock import Timers
from spotlight.core.errors import RewardError, SpotlightError, Stopped
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId, WeightsId
from spotlight.node.agent_effects import AgentEffects, NoEffects, Scoring
from spotlight.node.announcements import Announced, Announcements, Publishers
from spotlight.node.crews import CREWS_ONLY, NodeCrews, Rendezvous
from spotlight.node.flight_relay import FlightRelay, Frame
from spotlight.node.leases import Leases
from spotlight.node.node_settings import NodeSettings
from spotlight.node.notices.joined import JoinedNotices
from spotlight.node.notices.notice import Notice
from spotlight.node.slots import Send, WorkerSlots
from spotlight.node.term_judge import unscored
from spotlight.node.unloading import FlightStore


class AgentCore:
    """One node: `begin`, then events in any order. Every method returns at once."""

    def __init__(
        self, settings: NodeSettings, effects: AgentEffects, rendezvous: Rendezvous, store: FlightStore, timers: Timers
    ) -> None:
        self._settings = settings
        self._effects = effects
        self._timers = timers
        self._leases = Leases()
        self.crews = NodeCrews(settings, self, rendezvous, self._leases.of, timers)
        self._can_share = settings.can_share
        self._handlers = WITH_CREWS if settings.can_share else WITHOUT_CREWS
        self._announcements = Announcements()
        self._publishers = Publishers()
        self._slots = WorkerSlots(settings, effects, timers, self._gone)
        self._live = self._slots.live
        self._watches = self._slots.watches
        self.notices = JoinedNotices()
        self._judging: dict[WorkerId, int] = {}
        """Number of pending verdicts, by worker."""
        self._relayed = FlightRelay(store, self)

    def begin(self) -> None:
        """Start the workers when the machine has booted; the node's NodeHello has been sent."""
        self._slots.begin()

    def leave(self) -> None:
        """Do nothing more, and drop the references to the node, which is gone."""
        self._effects = NoEffects()
        self._relayed.leave()
        self.crews.leave()
        self._slots.leave()

    def drain(self) -> None:
        """Make the workers hand back their samples and exit; start no others; then end the node."""
        self._slots.drain()

    def warned(self, notice: Notice) -> None:
        """Apply one source's notice or withdrawal to the node."""
        change = self.notices.update(notice)
        if change is not None:
            self.crews.warned(change)
            seconds = change.seconds_left(self._timers.time())
            self._effects.report(None, m.Warned(kind=change.kind, seconds=seconds, withdrawn=change.withdrawn))

    # -- the controller ------------------------------------------------------------------------------------------------

    def from_controller(self, worker: WorkerId | None, message: m.AnyMessage, blob: bytes) -> None:
        """Relay a message to one worker, or to all for None, unless it is for the agent."""
        if type(message) not in FOR_AGENT:
            self._relay(worker, message, blob)
            return
        match message:
            case m.Load():
                self._announce(Announced(message, worker))
            case m.Fetch():
                self._announcements.add(Announced(message.load, is_early=True))
                self._copy_next()
            case m.Publish() if worker is not None:
                self._publishers.ordered(worker, message)
                self._relay(worker, message, blob)
            case m.Grant() if worker is not None:
                self._relayed.grant(worker, message)
            case cm.Demand():
                self.crews.demand(message)
            case m.Drain() if worker is None:
                self.drain()
            case _:
                self._relay(worker, message, blob)

    def _relay(self, worker: WorkerId | None, message: m.AnyMessage, blob: bytes) -> None:
        for each in [worker] if worker is not None else [live.id for live in self._slots.in_order()]:
            self._relayed.to_worker(each, (message, blob))

    def deliver(self, worker: WorkerId, frame: Frame) -> None:
        """Send a message to a worker; one that is gone is skipped."""
        live = self._live.get(worker)
        if live is None:
            return
        self._leases.observe(worker, frame[0])
        live.send(*frame)
        if self._can_share:
            self.crews.changed()

    # -- weights -------------------------------------------------------------------------------------------------------

    def is_wanted(self, weights: WeightsId) -> bool:
        """Whether the newest announcement keeps this set."""
        return self._announcements.is_wanted(weights)

    def copied(self, load: m.Load, local: m.Load | SpotlightError | None) -> None:
        """Relay an announcement with its path on this node; None: the copy was given up as not wanted."""
        announced = self._announcements.done()
        if announced.is_early:
            if isinstance(local, m.Load):
                self._announcements.fetched(load, local)
            self._copy_next()
            return
        self._publishers.arrived(load)
        if isinstance(local, SpotlightError):
            self._effects.report(None, m.Failed(problem=str(local), exit_code=local.exit_code))
            self._effects.end(str(local))
            return
        if local is not None:
            self._delete(self._announcements.copied(load, local, self._live))
            # Before the workers receive the Load: a crew would take a member that loads for hung.
            self.crews.dropped((load.weights, *load.keep))
            self._relay(announced.worker, local, b"")
        self._copy_next()

    def _announce(self, announced: Announced) -> None:
        publishers, adopt = self._publishers.announced(announced.load)
        for publisher in publishers:
            self.send(publisher, adopt)
        self._announcements.add(announced)
        self._copy_next()

    def _copy_next(self) -> None:
        load = self._announcements.next()
        if load is None:
            return
        if not load.path:
            self.copied(load, load)
        elif self._announcements.is_wanted(load.weights):
            self._effects.copy(load)
        else:
            self.copied(load, None)

    def _copy_again(self, worker: WorkerId, damaged: cm.CopyDamaged, blob: bytes) -> None:
        """A copy is damaged: bring it again from the run's machine, for the worker that found it."""
        found = self._announcements.again(damaged.weights)
        if found is not None:
            load, path = found
            problem = f"the copy of {load.weights} on {self._settings.node} is copied again: {damaged.problem}"
            self._effects.report(None, m.Noted(problem=problem))
            self._effects.spoil(path)
            self._announce(Announced(load, worker))

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            self._effects.delete(path)

    # -- lives of workers ----------------------------------------------------------------------------------------------

    def born(self, worker: WorkerId, send: Send) -> None:
        """A worker runs and can receive messages."""
        for load in self._announcements.current():
            send(load, b"")
        self._slots.born(worker, send)

    def dying(self, worker: WorkerId, why: str) -> None:
        """Report an end to the crews, which wait for the worker; `ended` follows when its messages have come."""
        self.crews.died(worker, why)

    def ended(self, worker: WorkerId, cause: str, was_killed: bool = False) -> None:
        """A worker's process is gone and all its messages have come; its Gone follows its pending verdicts."""
        is_awaited = worker in self._judging or self.is_storing(worker)
        cause = self._slots.ended(worker, cause, was_killed, is_awaited)
        self.crews.died(worker, cause)
        self._leases.gone(worker)
        self._relayed.gone(worker)
        if not is_awaited:
            self._slots.nothing_is_pending(worker)

    def _gone(self, worker: WorkerId, cause: str) -> None:
        self._delete(self._announcements.gone(worker))
        self._publishers.gone(worker)
        self._effects.report(None, m.Gone(worker=worker, cause=cause))

    # -- messages of workers -------------------------------------------------------------------------------------------

    def from_worker(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None:
        if self._watches and (live := self._live.get(worker)) is not None:
            live.seen_at, live.doubted_until = self._timers.time(), None
        handle = self._handlers.get(type(message))
        if handle is None:
            self._effects.report(worker, message)
        else:
            handle(self, worker, message, blob)

    def _hello(self, worker: WorkerId, hello: m.Hello, blob: bytes) -> None:
        self.crews.receive(worker, hello)
        self._effects.report(worker, hello)
        live = self._live.get(worker)
        if live is not None:
            live.has_started = True
        if not self._slots.is_draining and self._slots.have_started:
            self._effects.all_started()

    def _to_crews(self, worker: WorkerId, message: m.AnyMessage, blob: bytes) -> None:
        if not self.crews.receive(worker, message):
            self._effects.report(worker, message)

    def _holds(self, worker: WorkerId, held: m.Held, blob: bytes) -> None:
        self.crews.receive(worker, held)
        self._delete(self._announcements.caught_up(worker, held.weights))
        self._effects.report(worker, held)

    def _hands_back(self, worker: WorkerId, message: m.HandBack, blob: bytes) -> None:
        self._end_lease(worker, message.request, message.attempt)
        self._relayed.commit(worker, message, blob)

    def _commits(self, worker: WorkerId, message: m.Commit, blob: bytes) -> None:
        self._relayed.commit(worker, message, blob)

    def _commits_of_step(self, worker: WorkerId, commits: m.Commits, blob: bytes) -> None:
        for message in commits.messages:
            self._handlers[type(message)](self, worker, message, b"")

    def report_of(self, worker: WorkerId, message: m.AnyMessage) -> None:
        self._effects.report(worker, message)

    def is_storing(self, worker: WorkerId) -> bool:
        """Whether commits or hand-backs of this worker wait for the store, before they are reported."""
        return self._relayed.is_storing(worker)

    def all_stored(self, worker: WorkerId) -> None:
        self._ended_if_done(worker)

    def cannot_store(self, error: Stopped) -> None:
        """The store takes no more: the run stops before anything is lost."""
        self._effects.report(None, m.StoreFailed(problem=str(error)))

    def _asks(self, worker: WorkerId, asked: cm.AskNeighbour, blob: bytes) -> None:
        """Pass a newcomer's request for weights on to a worker that holds them."""
        holder = self.crews.holder(asked.weights, asked.newcomer)
        if holder is not None:
            self.send(holder, asked)
        else:
            self.send(asked.newcomer, cm.Offered(weights=asked.weights, newcomer=asked.newcomer))

    def _offers(self, worker: WorkerId, offered: cm.Offered, blob: bytes) -> None:
        self.send(offered.newcomer, offered, blob)

    # -- scores --------------------------------------------------------------------------------------------------------

    def judged(self, scoring: Scoring, verdict: Verdict) -> None:
        """Send a result with its verdict; its tensors are stored."""
        self._report_result(scoring, verdict)
        worker = scoring.worker
        left = self._judging[worker] - 1
        if left:
            self._judging[worker] = left
            return
        del self._judging[worker]
        self._ended_if_done(worker)

    def _ended_if_done(self, worker: WorkerId) -> None:
        """Report the end of a worker, if it has ended, once no verdict and no flight of it is pending."""
        if worker not in self._live and worker not in self._judging and not self.is_storing(worker):
            self._slots.nothing_is_pending(worker)

    def _finished(self, worker: WorkerId, result: m.Result, blob: bytes) -> None:
        """Start scoring and storing, once per attempt.

        A second result, one after the hand-back, and one of a worker that has ended are dropped: they would overtake
        the first report or `Gone`, which wait for the store, and count as a failure of the sample.
        """
        if worker not in self._live or self._leases.has_ended(worker, result.request, result.attempt):
            return
        granted, problem, tensors = self._end_lease(worker, result.request, result.attempt), "", b""
        try:
            picture, tensors = self._effects.open(blob)
        except RewardError as error:
            problem = str(error)
        if granted is None:
            problem = problem or f"node {self._settings.node} holds no lease of this sample, so its prompt is unknown."
        if granted is None or problem:
            self._report_result(Scoring(worker, result, tensors), unscored(problem))
        else:
            self._judging[worker] = self._judging.get(worker, 0) + 1
            self._effects.score(Scoring(worker, result, tensors), granted, picture)

    def _report_result(self, scoring: Scoring, verdict: Verdict) -> None:
        worker, result, _ = scoring
        problem = verdict.problem
        if result.problem:
            problem = "; ".join(filter(None, (result.problem, problem)))
        self._effects.report(worker, msgspec.structs.replace(result, score=verdict.score, problem=problem))

    def _end_lease(self, worker: WorkerId, request: RequestId, attempt: int) -> m.Granted | None:
        granted = self._leases.ended(worker, request, attempt)
        if self._can_share:
            self.crews.changed()
        return granted

    # -- actions of crews ----------------------------------------------------------------------------------------------

    def send(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None:
        live = self._live.get(worker)
        if live is not None:
            live.send(message, blob)

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        self._slots.kill(worker, f"killed, because it {why}")

    def report(self, crewed: cm.Crewed) -> None:
        self._effects.report(None, crewed)


Handler: TypeAlias = Callable[[AgentCore, WorkerId, Any, bytes], None]
FOR_AGENT = frozenset({m.Fetch, m.Load, m.Publish, m.Grant, cm.Demand, m.Drain})
"""Messages of the controller that are not only relayed."""
WITHOUT_CREWS: Mapping[type, Handler] = {
    m.Hello: AgentCore._hello,
    m.Held: AgentCore._holds,
    m.Commit: AgentCore._commits,
    m.HandBack: AgentCore._hands_back,
    m.Commits: AgentCore._commits_of_step,
    m.Result: AgentCore._finished,
    cm.AskNeighbour: AgentCore._asks,
    cm.Offered: AgentCore._offers,
    cm.CopyDamaged: AgentCore._copy_again,
}
"""Messages of workers that are not only relayed; the table is a quick way for all others."""
FOR_CREWS = (m.Pull, m.Alive, *CREWS_ONLY)
WITH_CREWS: Mapping[type, Handler] = {**WITHOUT_CREWS, **dict.fromkeys(FOR_CREWS, AgentCore._to_crews)}
