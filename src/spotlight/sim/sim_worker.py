"""One simulated worker: drives `WorkerCore` over a simulated engine, with timers for work.

At each `CrashPoint` it calls `Surroundings.should_crash` and dies if that is true. Heartbeats are independent of its
steps.
"""

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from spotlight import __version__
from spotlight.compute.profiling.pace import Pace
from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, SlotClass, WeightsId
from spotlight.node.loading_core import LoadEffect, LoadingCore, OfferHeld, ReadHeld
from spotlight.node.membership import Connect, CrewProblem, Follow
from spotlight.node.unloading import Appends, CommitFrame, post_commits
from spotlight.node.worker_core import (
    ORDERED,
    Effect,
    Exit,
    FailedRow,
    Obey,
    RunStep,
    StepDone,
    TrainingOrder,
    Wait,
    WorkerCore,
)
from spotlight.sim.background_writes import BackgroundWrites
from spotlight.sim.crash_points import Crashed, CrashPoint, WorkerExited
from spotlight.sim.crew_member import SimCrew
from spotlight.sim.heartbeat import Heartbeat
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.numerics import Numerics
from spotlight.sim.owed_orders import OwedOrders
from spotlight.sim.rendezvous import SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_engine import ROUNDING, RunAhead, SimCommit, SimEngine
from spotlight.sim.sim_loading import SimSets, perform
from spotlight.sim.sim_spans import SimSpans
from spotlight.sim.sim_trainer import SimTrainer, obey
from spotlight.sim.surroundings import Surroundings

RENEWING_S = 5.0
"""Time between two looks for a set whose copy was damaged."""
LATE = " of an attempt that was given up"
"""Mark in the tensors of a late result."""


@dataclass(eq=False)
class SimWorker:
    """One process on a slot; `live` runs it."""

    id: WorkerId
    node: NodeId
    slot_class: SlotClass
    rows: int
    pace: Pace
    around: Surroundings
    trainer: SimTrainer | None
    numerics: Numerics
    latent_salt: str
    """Stands for a latent's last bits, which vary outside of deterministic mode."""
    rendezvous: SimRendezvous
    kind: str = ""
    """Kind of its GPU."""
    machines: SimMachineSettings = field(default_factory=SimMachineSettings)
    never_faults: bool = False
    """No fault ever happens, so the checks are skipped."""
    store: Appends | None = None
    """Where it stores its flights; None: its agent does, over the network."""
    _inbox: deque[tuple[m.AnyMessage, bytes]] = field(default_factory=deque)
    holds: SimSets = field(default_factory=SimSets)
    _spans: SimSpans = field(default_factory=SimSpans)
    _owed: OwedOrders = field(default_factory=OwedOrders)
    _crash_next: CrashPoint | None = None
    """Crash point that is passed when the worker next looks for messages."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[bool] | None = None
        """Set while the worker waits for messages: True when one arrived."""
        self.send: Callable[..., None] = partial(self.around.send_from, self.id)
        self.background = BackgroundWrites()
        self._is_awake = True
        self._is_loading = False
        self._woken = asyncio.Event()
        self._woken.set()
        # Weak references, so that each of the thousands of workers of a long run is freed without garbage collection.
        me = weakref.proxy(self)
        known = weakref.ref(self)

        def beat() -> None:
            # The worker may have died and been freed at the instant of a heartbeat.
            if (living := known()) is not None:
                living._beat()

        self._heartbeat = Heartbeat(beat)
        self.engine = SimEngine(
            self.rows, self.numerics, self.holds, self.pace.is_exact, lambda row: me._withdrawn(row), self._loop.time
        )
        self.crew = SimCrew(me, self.rendezvous, self.machines.elastic)
        hello = m.Hello(
            schema=SCHEMA,
            code=__version__,
            node=self.node,
            slot_class=self.slot_class,
            rows=self.rows,
            pid=1,
            trains=self.trainer is not None,
            kind=self.kind,
        )
        send: Callable[..., None] = lambda message, blob: me._send_of_loading(message, blob)  # noqa: E731
        self._loading = LoadingCore(self.id, self.holds, send, self.machines.copies_sets, self._loop.time)
        self.core = WorkerCore(self.id, hello, self.engine, self.crew.membership, self._loading, me)

    def receive(self, message: m.AnyMessage, blob: bytes) -> None:
        if self.trainer is not None and isinstance(message, m.FormGang) and self._is_awake:
            # The worker may wait in an exchange of a gang that has lost a rank.
            self.trainer.abort(message.epoch)
        self._inbox.append((message, blob))
        arrival = self._arrival
        if arrival is not None and not arrival.done():
            arrival.set_result(True)

    def slow(self, factor: float) -> None:
        self.pace.slowness = factor

    def freeze(self, seconds: float) -> None:
        """Receive, compute and send nothing for `seconds`, then continue."""
        self._is_awake = False
        self._heartbeat.freeze()
        self._woken.clear()
        self._loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._is_awake = True
        self._woken.set()
        self._heartbeat.thaw()

    async def live(self) -> str:
        """Run until it exits; return the cause. A kill is the task's cancellation."""
        await self.take_time(self.pace.start_s)
        self._heartbeat.start(self.pace.heartbeat_s)
        try:
            await self._work()
        except Crashed as crash:
            return str(crash)
        except WorkerExited:
            return "exited"
        finally:
            if self.trainer is not None:
                self.trainer.leave()
            self.background.stop()
            self._heartbeat.stop()

    # -- links of the core ---------------------------------------------------------------------------------------------

    def take(self) -> tuple[m.AnyMessage, bytes] | None:
        if self._crash_next is not None:
            point, self._crash_next = self._crash_next, None
            self.crash_if_due(point)
        arrived = self._inbox.popleft() if self._inbox else None
        if arrived is None or self.never_faults:
            return arrived
        if isinstance(arrived[0], crews.Disband):
            self.crash_if_due(CrashPoint.DISBANDING)
        self._owed.taken(arrived[0])
        return arrived

    def commit(self, commits: Sequence[CommitFrame]) -> None:
        post_commits(commits, self.store, self.send)

    def deliver(self, finished: Sequence[SimRow]) -> None:
        for row in finished:
            digest = row.digest
            if not self.never_faults:
                self.crash_if_due(CrashPoint.BEFORE_RESULT)
                digest = self.around.digest_used(digest, self.id)
            tensors = self.numerics.tensors(row.request, digest, self.latent_salt)
            self.around.finished(self, row, digest, tensors)

    def _send_of_loading(self, message: m.AnyMessage, blob: bytes) -> None:
        self.send(message, blob)
        if isinstance(message, crews.CopyDamaged):
            self._loop.call_later(RENEWING_S, self._check_renewed, message.weights)

    def _check_renewed(self, weights: WeightsId) -> None:
        """A set whose copy was damaged is there, is no longer wanted, or is on its way."""
        is_here = bool(self._inbox) or self._is_loading or weights in self._loading.requests
        if weights not in self.holds and (is_here or self.around.brings(self.id, weights)):
            self._loop.call_later(RENEWING_S, self._check_renewed, weights)

    def _withdrawn(self, row: SimRow) -> None:
        """A sample is handed back; a fault may send its result all the same, later."""
        delay_s = self.around.late_result_delay(self.id)
        if delay_s is not None:
            # Of an attempt that was given up: its tensors are like no accepted ones, and must never be kept.
            tensors = self.numerics.tensors(row.request, row.digest, LATE)
            self._loop.call_later(delay_s, self.around.finished_late, self, row, row.digest, tensors)

    # -- effects of the core -------------------------------------------------------------------------------------------

    async def _work(self) -> NoReturn:
        life, completion = self.core.live(), None
        while True:
            effect = life.send(completion)
            if type(effect) is RunStep:
                completion = await self._step()
            elif type(effect) is Wait and effect.seconds is None:
                # Nothing was awaited since the inbox was found empty.
                arrival = self._arrival = self._loop.create_future()
                completion = await arrival
                self._arrival = None
            else:
                completion = await self._perform(effect)
            if not self._is_awake:
                await self._woken.wait()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Wait(seconds=seconds):
                assert seconds is not None
                await self._message_within(seconds)
            case Connect(order=order):
                return await self.crew.connect(order, self.pace.connect_s)
            case Follow(forward=forward):
                return await self._follow(forward)
            case Obey(order=ordered):
                return await self._obey(ordered)
            case Exit():
                raise WorkerExited
            case RunStep():
                return await self._step()
            case _:
                return await self._load(effect)
        return None

    async def _step(self) -> StepDone | CrewProblem:
        if self._owed.is_any:
            self._owed.check(self.engine.live.values())
        pace, loop, engine = self.pace, self._loop, self.engine
        first, batch = engine.next_batch()
        is_exact = first.bucket[1]
        if switch_s := pace.roll():
            began = loop.time()
            await self.take_time(switch_s)
            self._spans.worked(Activity.SWITCH, began, loop.time())
        began, steps, degree = loop.time(), 1, self.crew.membership.degree
        passes = sum([row.passes for row in batch])
        seconds = pace.step(passes, self.rows, degree, is_exact)
        if degree > 1:
            image = pace.image(first.request.sample.sampling.size)
            problem = await self.crew.lead(batch, image, is_exact, seconds)
            if problem is not None:
                return problem
        elif pace.runs_ahead:
            engine.ahead = RunAhead(batch, began, seconds)
            steps = min([row.steps_ahead for row in batch])
            if await self._message_within(steps * seconds):
                # A message arrived: stop at the next boundary.
                steps = max(1, math.ceil((loop.time() - began) / seconds - ROUNDING))
                await asyncio.sleep(began + steps * seconds - loop.time())
            engine.ahead = None
        else:
            await self.take_time(seconds)
        step_s = (loop.time() - began) / steps
        if not self._is_awake:
            await self._woken.wait()
        for row in batch:
            row.advance(steps, self.numerics)
        finished = len([row for row in batch if row.step >= row.steps])
        if finished and (decoding_s := pace.decode(finished)):
            await self.take_time(decoding_s)
        self._spans.worked(first.activity, began, loop.time())
        self._crash_next = None if self.never_faults else CrashPoint.AT_BOUNDARY
        return self._ended(batch, step_s)

    def _ended(self, batch: Sequence[SimRow], step_s: float) -> StepDone:
        """The rows that a step finished, failed or has to commit."""
        finished, failed, commits = [], [], []
        for row in batch:
            request, attempt = row.request.id, row.attempt
            if not self.never_faults and self.around.fails(row.request, attempt):
                del self.engine.live[request]
                failed.append(FailedRow(request, attempt, "the model raised"))
            elif row.step >= row.steps:
                del self.engine.live[request]
                finished.append(row)
            elif row.owes_commit:
                since = row.committed
                commits.append(SimCommit(request, attempt, row.step, row.commit(), since))
        return StepDone(len(batch), step_s, finished, commits, failed)

    async def _message_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; True if one arrived."""
        arrival = self._arrival = self._loop.create_future()
        timer = self._loop.call_later(seconds, _settle, arrival, False)
        try:
            return await arrival
        finally:
            self._arrival = None
            timer.cancel()

    async def _follow(self, forward: crews.Forward) -> CrewProblem | None:
        began, degree = self._loop.time(), self.crew.membership.degree
        passes = 2 * forward.rows if forward.guided else forward.rows
        problem = await self.crew.follow(forward, self.pace.part(passes, degree, forward.is_exact))
        self._spans.worked(Activity.ROLLOUT if forward.is_exact else Activity.PREVIEW, began, self._loop.time())
        return problem

    async def _load(self, effect: LoadEffect) -> str | bytes | bool | None:
        began, self._is_loading = self._loop.time(), True
        completion = await perform(effect, self.holds, self)
        self._is_loading = False
        if isinstance(effect, OfferHeld):
            self._crash_next = CrashPoint.OFFERED
        elif not isinstance(effect, ReadHeld):
            self._spans.worked(Activity.LOAD, began, self._loop.time())
        return completion

    def trained(self, weights: WeightsId) -> str:
        assert self.trainer is not None
        return self.trainer.digest_of(weights.policy)

    async def _obey(self, order: TrainingOrder) -> m.AnyMessage | None:
        assert self.trainer is not None
        began = self._loop.time()
        switch_s = self.pace.switch() if isinstance(order, m.Train) else None
        reply = await obey(order, self.trainer, self.pace, self)
        self._crash_next = CrashPoint.REPLY_SENT if isinstance(order, m.Train) else None
        if switch_s is not None:
            self._spans.trained(began, self._loop.time(), switch_s)
        else:
            self._spans.worked(ORDERED[type(order)], began, self._loop.time())
        return reply

    # -- heartbeats and time -------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self.send(self.core.alive(self._spans.take(self._loop.time())))

    async def take_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.awake()

    async def awake(self) -> None:
        if not self._is_awake:
            await self._woken.wait()

    def crash_if_due(self, point: CrashPoint) -> None:
        if not self.never_faults and self.around.should_crash(point, self.id):
            raise Crashed(point.value)


def _settle(waiting: asyncio.Future[bool], has_arrived: bool) -> None:
    if not waiting.done():
        waiting.set_result(has_arrived)
