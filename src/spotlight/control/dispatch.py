"""Handles each message that the controller receives: the ledger holds states, the scheduler decides, this replies.

Pure except for its payload store: it receives messages and losses and returns messages to send, over real or
simulated sockets.

Invariant: a sample's tensors are stored before its acceptance is recorded, and only those of the live attempt; so an
accepted sample has its file, whatever is lost, duplicated or late (tests/storm).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from spotlight.control.accounts import Accounts
from spotlight.control.demand import Demands
from spotlight.control.directory import Directory, KnownWorker, PublishedSet
from spotlight.control.flights import Flights
from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.node_notices import NodeNotices
from spotlight.control.outside import Outgoing, Payloads
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.tag import Assist
from spotlight.control.recovery import RecoveredFlight
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.setbacks import Failure, Setbacks
from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError, SpotlightError, Stopped
from spotlight.core.events import Accepted, AnyEvent, Crewing, Holding, NodeJoined, NodeLost, WorkerJoined, WorkerLost
from spotlight.core.message import Message
from spotlight.core.types import NodeId, Prompt, WorkerId
from spotlight.core.work import RefusalReason, ReleaseReason, Request, RequestId, WeightsId, Work


class Dispatcher:
    """One message in, any number out; `outbox` collects them until `take_outbox`."""

    def __init__(
        self,
        ledger: Ledger,
        scheduler: Scheduler,
        payloads: Payloads,
        emit: Callable[[AnyEvent], None],
        run_clock: Callable[[float], float],
        commit_every: int,
        demands: Demands | None = None,
        pipeline: PipelineConfig | None = None,
        previews_follow: bool = False,
    ) -> None:
        self.ledger = ledger
        self.scheduler = scheduler
        self.directory = Directory()
        self.assist = Assist(pipeline or PipelineConfig(), self.directory, scheduler, previews_follow)
        self._emit = emit
        self._notices = NodeNotices(self.directory, scheduler, emit)
        self._accounts = Accounts(self.directory, self.assist, emit, run_clock)
        self._commit_every = commit_every
        self._demands = demands or Demands(tokens=1)
        self._payloads = payloads
        self.flights = Flights(payloads.release)
        self.setbacks = Setbacks(emit)
        self.outbox: list[Outgoing] = []
        self.failure: SpotlightError | None = None
        """Error that ends the run, once known."""
        self._signs = 0
        self.to_gang: list[tuple[WorkerId, m.AnyMessage]] = []
        """Messages of training workers, for the gang."""
        self._by_kind: Mapping[type[Message], Callable[[WorkerId, Any, float], None]] = {
            m.Pull: self._pull,
            m.Alive: self._alive,
            m.Commit: self._commit,
            m.HandBack: self._hand_back,
            m.Result: self._result,
            m.Held: self._held,
        }
        """Handlers of the frequent messages of known workers: a lookup is faster than the match of the rare ones."""

    # -- calls of the loop ---------------------------------------------------------------------------------------------

    def issue(self, requests: Sequence[Request], prompts: Sequence[Prompt], positions: Sequence[int] = ()) -> None:
        """Add new requests; the next `serve` grants them to waiting workers."""
        for prompt in prompts:
            self.directory.prompts[prompt.id] = prompt
        self.ledger.issue(requests, positions)
        self.scheduler.add(requests)

    def requeue(
        self,
        requests: Sequence[Request],
        prompts: Sequence[Prompt],
        flights: Mapping[RequestId, RecoveredFlight] | None = None,
    ) -> None:
        """Schedule requests that the ledger already has; after a restart some continue a flight."""
        for prompt in prompts:
            self.directory.prompts[prompt.id] = prompt
        steps = {request: self.flights.recover(request, flight) for request, flight in (flights or {}).items()}
        self.scheduler.add(requests, steps)

    def prefetch(self, weights: WeightsId, written: PublishedSet) -> None:
        """Let the nodes copy weights that are published soon, while their workers finish older work."""
        for node in sorted(self.directory.nodes):
            self.outbox.append(Outgoing(node, None, m.Fetch(load=self.directory.load_for(node, weights, written))))

    def publish(self, weights: WeightsId, published: PublishedSet, keep: Sequence[WeightsId]) -> None:
        """Publish a set of weights; only it and the sets in `keep` remain available."""
        self.directory.weights[weights] = published
        self._check_recovered(weights, published.digest)
        for old in sorted(set(self.directory.weights) - {weights, *keep}):
            del self.directory.weights[old]
        for worker in sorted(self.directory.workers):
            self._update_holdings(worker)
        for node in sorted(self.directory.nodes):
            self.outbox += [Outgoing(node, None, load) for load in self.directory.loads_for(node)]

    def cancel(self, work: Work) -> None:
        """Drop all unfinished requests of this kind."""
        for worker in self.scheduler.cancel(work):
            self.send(worker, m.Discard(work=work))
        self.flights.keep_only(lambda request: self.ledger.state(request) is not SampleState.DROPPED)

    @property
    def signs(self) -> int:
        """Number of signs of progress so far: samples, commits, steps, loaded weights, replies of the gang."""
        return self._signs + self.scheduler.advances

    def take_outbox(self) -> list[Outgoing]:
        outbox, self.outbox = self.outbox, []
        return outbox

    # -- messages of nodes and workers ---------------------------------------------------------------------------------

    def node_joined(self, hello: m.NodeHello) -> None:
        self.directory.add_node(hello)
        self._emit(
            NodeJoined(
                node=hello.node,
                slot_class=hello.slot_class,
                slots=hello.slots,
                zone=hello.zone,
                price=hello.price,
                is_far=hello.is_far,
                age_s=hello.age_s,
            )
        )
        self.outbox += [Outgoing(hello.node, None, load) for load in self.directory.loads_for(hello.node)]

    def node_lost(self, node: NodeId, cause: str, now: float) -> None:
        """Remove a node and all its workers, because the connection to its agent broke."""
        if not self.directory.remove_node(node):
            return
        self._notices.node_lost(node)
        self.setbacks.node_lost(node)
        for worker in self.directory.workers_of(node):
            self.worker_lost(worker, cause, ReleaseReason.LOST, now)
        self._payloads.writer_gone(node, self.flights.parts_by_file)
        self._emit(NodeLost(node=node, cause=cause))

    def worker_lost(self, worker: WorkerId, cause: str, reason: ReleaseReason, now: float) -> None:
        known = self.directory.forget(worker)
        if known is None:
            return
        for request in self.scheduler.lose(worker, reason, now):
            if given_up := self.setbacks.lost(request):
                self.flights.forget(request)
                self.scheduler.drop(request, given_up)
        self._emit(WorkerLost(worker=worker, cause=cause, noticed=known.warned))

    def handle(self, node: NodeId, envelope: m.Envelope, now: float) -> None:
        """Handle one message of a worker or of the node's agent, then serve waiting workers."""
        worker, message = envelope.worker, envelope.message
        handler = self._by_kind.get(type(message))
        if handler is not None and worker is not None and worker in self.directory.workers:
            handler(worker, message, now)
        else:
            self._handle_rare(node, worker, message, now)
        self.serve(now)

    def _handle_rare(self, node: NodeId, worker: WorkerId | None, message: m.AnyMessage, now: float) -> None:
        match message:
            case m.Warned():
                for warned in self._notices.warned(node, message, now):
                    self._recall_doomed(warned, now)
            case m.Gone():
                self.worker_lost(message.worker, message.cause, ReleaseReason.LOST, now)
                self._payloads.writer_gone(message.worker, self.flights.parts_by_file)
            case crews.Crewed():
                self._emit(Crewing(node=node, **msgspec.structs.asdict(message)))
            case m.StoreFailed():
                raise Stopped(message.problem)
            case m.Noted():
                self.setbacks.note_once(node, message.problem)
            case m.RewardAwaited() if node in self.directory.nodes:
                self.setbacks.reward_awaited(node, message)
            case m.Failed() if worker is None or message.fatal:
                self._count_trouble(node, Failure(message.problem, message.exit_code))
            case m.Hello() if worker is not None:
                self._hello(worker, message, now)
            case _ if worker is not None and worker not in self.directory.workers:
                # Fenced for silence, or without a Hello: it has no valid lease.
                self.outbox.append(Outgoing(node, worker, m.Drain()))
                if isinstance(message, m.Commit | m.HandBack):
                    self.flights.refuse(message.request, message.step, message.flight)
            case m.Failed() if worker is not None and message.request is not None:
                self._attempt_failed(worker, message.request, message, now)
            case _ if worker is not None:
                self._signs += 1
                self.to_gang.append((worker, message))

    def tick(self, now: float) -> None:
        """Fence silent workers, recall stragglers' samples, serve waiting workers, send changed demands."""
        for worker in self.scheduler.silent(now):
            node = self.directory.workers[worker].node
            self.worker_lost(worker, "silent", ReleaseReason.SILENT, now)
            self.outbox.append(Outgoing(node, worker, m.Drain()))
        for recalled in self.scheduler.recalls(now):
            self.send(recalled.worker, m.Recall(requests=recalled.requests))
        self.serve(now)
        for node, demand in self._demands.changes(self.directory, self.scheduler):
            self.outbox.append(Outgoing(node, None, demand))

    def serve(self, now: float) -> None:
        """Send grants for all assignments of the scheduler."""
        self.assist.let_through(now)
        for assignment in self.scheduler.assign(now):
            leases = []
            for lease in assignment.leases:
                request = lease.request
                leases.append(
                    m.Granted(
                        request=request,
                        attempt=lease.attempt,
                        step=lease.step,
                        prompt=self.directory.prompts[request.sample.prompt],
                        commit_every=0 if request.work is Work.PREVIEW else self._commit_every,
                        flight=self.flights.at(request.id, lease.step) if lease.step else (),
                    )
                )
            self.send(assignment.worker, m.Grant(leases=tuple(leases)))

    # -- one message each ----------------------------------------------------------------------------------------------

    def _hello(self, worker: WorkerId, hello: m.Hello, now: float) -> None:
        if (problem := self.directory.mismatch(hello)) is not None:
            self._count_trouble(hello.node, Failure(problem, ConfigError.exit_code))
            self.outbox.append(Outgoing(hello.node, worker, m.Drain()))
            return
        self.directory.introduce(worker, KnownWorker(node=hello.node, trains=hello.trains, came_at=now))
        self.scheduler.join(worker, hello.slot_class, hello.rows, now)
        self._emit(
            WorkerJoined(
                worker=worker,
                node=hello.node,
                slot_class=hello.slot_class,
                rows=hello.rows,
                pid=hello.pid,
                trains=hello.trains,
                kind=hello.kind,
            )
        )
        self._notices.joined(worker, now)
        if hello.trains:
            self.to_gang.append((worker, hello))

    def _count_trouble(self, node: NodeId, failure: Failure) -> None:
        if self.failure is None and (known := self.directory.nodes.get(node)) is not None:
            self.failure = self.setbacks.trouble(node, known.slot_class, failure)

    def _pull(self, worker: WorkerId, pull: m.Pull, now: float) -> None:
        if self.scheduler.is_current(worker, pull, now):
            self.assist.pull(worker, pull, now)

    def _alive(self, worker: WorkerId, alive: m.Alive, now: float) -> None:
        self.scheduler.heartbeat(worker, () if alive.warms_up else alive.progress, now)
        self._accounts.add_spans(worker, alive.spans, now)
        self._recall_doomed(worker, now)

    def _hand_back(self, worker: WorkerId, given: m.HandBack, now: float) -> None:
        step = 0
        if given.flight is not None:
            step, is_live = given.step, self.ledger.is_live(given.request, given.attempt, worker)
            (self.flights.keep if is_live else self.flights.refuse)(given.request, step, given.flight)
        self.scheduler.hand_back(worker, given.request, given.attempt, step, now)

    def _commit(self, worker: WorkerId, commit: m.Commit, now: float) -> None:
        """Keep the commit of a live attempt; if the part that it builds on is missing, recall the complete flight."""
        fits = self.flights.fits(commit.request, commit.since)
        if not self.scheduler.committed(worker, commit.request, commit.attempt, commit.step if fits else 0, now):
            self.flights.refuse(commit.request, commit.step, commit.flight)
            self.send(worker, m.Fenced(request=commit.request, attempt=commit.attempt))
        elif fits and commit.flight is not None:
            self.flights.keep(commit.request, commit.step, commit.flight, commit.since)
            self.setbacks.committed(commit.request)
            self._signs += 1
        else:
            self.flights.refuse(commit.request, commit.step, commit.flight)
            self.send(worker, m.Recall(requests=(commit.request,)))

    def _result(self, worker: WorkerId, result: m.Result, now: float) -> None:
        """Accept a result once, after a second attempt also without a score; the ledger refuses all others."""
        live = self.ledger.is_live(result.request, result.attempt, worker)
        expected, payload = None, None
        score = result.score or m.Score(reward=math.nan)
        if live:
            request = self.ledger.request(result.request)
            published = self.directory.weights.get(request.weights)
            expected = published.digest if published is not None else ""
            if expected == result.digest:
                if result.payload is None and request.work is Work.ROLLOUT:
                    problem = result.problem or "its tensors are missing"
                    failed = m.Failed(problem=problem, request=request.id, attempt=result.attempt)
                    self._attempt_failed(worker, request.id, failed, now)
                    return
                if not math.isfinite(score.reward) and self.setbacks.unscored(result.request, result.problem):
                    self.scheduler.hand_back(worker, result.request, result.attempt, 0, now, ReleaseReason.UNSCORED)
                    self._signs += 1
                    return
                payload = result.payload
        refusal = self.ledger.accept(
            Accepted(
                request=result.request,
                attempt=result.attempt,
                worker=worker,
                digest=result.digest,
                reward=score.reward,
                components=score.components,
                scorer=score.scorer,
                payload=payload.place if payload else None,
                payload_digest=payload.digest if payload else None,
                steps=result.steps,
                problem="" if math.isfinite(score.reward) else result.problem,
            ),
            expected,
        )
        if live:
            # Finished, or made with the wrong weights: no attempt resumes from its commits.
            self.flights.forget(result.request)
            self.scheduler.done(worker, result.request, now)
        if refusal is None:
            self.setbacks.accepted(result.request)
            self._signs += 1
        elif refusal is RefusalReason.WRONG_WEIGHTS:
            # The worker lacks the weights that it reported, so it ends; the process that replaces it loads them anew.
            self.send(worker, m.Drain())
            if given_up := self.setbacks.misused(result.request):
                self.scheduler.drop(result.request, given_up)

    def _held(self, worker: WorkerId, held: m.Held, now: float) -> None:
        self._emit(Holding(worker=worker, weights=held.weights, digest=held.digest))
        published = self.directory.weights.get(held.weights)
        if published is None:
            return
        if published.digest != held.digest:
            # Samples from other weights than published would be wrong without an error: end this process.
            self.send(worker, m.Drain())
            return
        self._signs += 1
        self.directory.holds(worker, held.weights, now)
        self._update_holdings(worker)

    def _attempt_failed(self, worker: WorkerId, request: RequestId, failed: m.Failed, now: float) -> None:
        if not self.ledger.is_live(request, failed.attempt, worker):
            return
        given_up = self.setbacks.failed(request, Failure(failed.problem, failed.exit_code))
        self.flights.forget(request)
        self.scheduler.hand_back(worker, request, failed.attempt, 0, now, ReleaseReason.FAILED)
        if given_up:
            self.scheduler.drop(request, given_up)

    def _recall_doomed(self, worker: WorkerId, now: float) -> None:
        """Recall the samples that a worker under notice cannot finish in time, at its latest measured speed."""
        if requests := self.scheduler.must_hand_back(worker, now):
            self.send(worker, m.Recall(requests=tuple(requests)))

    def _check_recovered(self, weights: WeightsId, digest: str) -> None:
        """Flights of other bits than are published now start over: no sample may mix two."""
        others = [request for request, made_with in self.flights.recovered.items() if made_with != digest]
        for request in others:
            is_queued = self.ledger.state_or_dropped(request) is SampleState.QUEUED
            if is_queued and self.ledger.request(request).weights == weights:
                self.flights.forget(request)
                self.scheduler.start_over(request)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _update_holdings(self, worker: WorkerId) -> None:
        """Pass the published weights that a worker holds to the scheduler."""
        holds = self.directory.workers[worker].holds
        holds &= set(self.directory.weights)
        self.scheduler.holds(worker, sorted(holds), sorted(set(self.directory.weights) - holds))

    def send(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """Send a message to a worker; a no-op if it is gone."""
        known = self.directory.workers.get(worker)
        if known is not None:
            self.outbox.append(Outgoing(known.node, worker, message))
