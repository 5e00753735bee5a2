"""One simulated worker: the protocol of `node.worker`, with hashes for tensors and timers for work.

Between two denoising steps it applies the messages that have arrived, in order. Heartbeats are independent of that. At
each `CrashPoint` it calls `Surroundings.should_crash` and dies if that is true.
"""

import asyncio
import math
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import msgspec

from spotlight import __version__
from spotlight.compute.profiling.pace import Pace
from spotlight.controller.gang_orders import GangOrder
from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, RequestId, SlotClass, WeightsId
from spotlight.sim.background_writes import BackgroundWrites
from spotlight.sim.crash_points import Crashed, CrashPoint, WorkerExited
from spotlight.sim.crew_member import SimMembership
from spotlight.sim.heartbeat import Heartbeat
from spotlight.sim.numerics import Numerics
from spotlight.sim.rendezvous import SimRendezvous
from spotlight.sim.row import SimRow, start_row
from spotlight.sim.sim_spans import SimSpans
from spotlight.sim.sim_trainer import SimTrainer, obey
from spotlight.sim.surroundings import Surroundings

_read_flights = msgspec.msgpack.Decoder(dict[str, bytes]).decode
ROUNDING = 1e-6
"""Share of a step: a message this close after a boundary counts as arrived at it."""
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
    never_faults: bool = False
    """No fault ever happens, so the checks are skipped."""
    _inbox: deque[tuple[m.AnyMessage, bytes]] = field(default_factory=deque)
    _live: dict[RequestId, SimRow] = field(default_factory=dict)
    _holds: dict[WeightsId, str] = field(default_factory=dict)
    _spans: SimSpans = field(default_factory=SimSpans)
    _rolls: bool = True
    _offered_rows: int = 0
    _grants: int = 0
    _speed: float | None = None
    _ahead: tuple[Sequence[SimRow], float, float] | None = None
    """Rows that run ahead, their start time, and the seconds per step."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrival: asyncio.Future[bool] | None = None
        """Set while the worker waits for messages: True when one arrived."""
        self.send: Callable[..., None] = partial(self.around.send_from, self.id)
        self.background = BackgroundWrites()
        self._is_awake = True
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
        self.crew = SimMembership(
            self.id,
            self.rendezvous,
            self.send,
            lambda: me._holds,
            lambda: {row.request.weights for row in me._live.values()},
            lambda point: me.crash_if_due(point),
            self._woken.wait,
        )

    def deliver(self, message: m.AnyMessage, blob: bytes) -> None:
        self._inbox.append((message, blob))
        arrival = self._arrival
        if arrival is not None and not arrival.done():
            arrival.set_result(True)

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
        self.send(hello)
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

    # -- the main loop -------------------------------------------------------------------------------------------------

    async def _work(self) -> NoReturn:
        """Repeat: apply all messages, then take a step or wait for messages."""
        inbox, crew = self._inbox, self.crew
        while True:
            while inbox:
                if not self._is_awake:
                    await self._woken.wait()
                message, blob = inbox.popleft()
                if isinstance(message, m.Grant):
                    self._take(message, blob)
                else:
                    await self._apply(message)
            hold_s = 0.0 if crew.is_alone else crew.hold_s()
            self._pull()
            if self._live and not hold_s:
                await self._step()
                continue
            if hold_s:
                await self._orders(hold_s)
            else:
                arrival = self._arrival = self._loop.create_future()
                await arrival
                self._arrival = None
            if not self._is_awake:
                await self._woken.wait()

    async def _step(self) -> None:
        pace, loop, batch = self.pace, self._loop, list(self._live.values())
        first = batch[0] if len(batch) == 1 else min(batch, key=lambda row: row.request.work.rank)
        weights, is_exact = first.request.weights, pace.is_exact(first.request.work)
        if len(batch) > 1:
            alike = [row for row in batch if row.request.weights == weights]
            batch = [row for row in alike if pace.is_exact(row.request.work) is is_exact]
        if switch_s := pace.roll():
            began = loop.time()
            await self.take_time(switch_s)
            self._spans.worked(Activity.SWITCH, began, loop.time())
        began, steps, degree = loop.time(), 1, self.crew.degree
        passes = sum([row.passes for row in batch])
        seconds = pace.step(passes, self.rows, degree, is_exact)
        if degree > 1:
            if not await self.crew.lead(weights, is_exact, passes, seconds):
                return
        else:
            if pace.runs_ahead:
                self._ahead = (batch, began, seconds)
                steps = min([row.steps_ahead for row in batch])
                if await self._orders(steps * seconds):
                    # A message arrived: stop at the next boundary.
                    steps = max(1, math.ceil((loop.time() - began) / seconds - ROUNDING))
                    await asyncio.sleep(began + steps * seconds - loop.time())
                self._ahead = None
            else:
                await self.take_time(seconds)
            self._measure(len(batch), (loop.time() - began) / steps)
        if not self._is_awake:
            await self._woken.wait()
        for row in batch:
            row.advance(steps, self.numerics)
        finished = len([row for row in batch if row.step >= row.steps])
        if finished and (decoding_s := pace.decode(finished)):
            await self.take_time(decoding_s)
        self._spans.worked(first.activity, began, loop.time())
        for row in batch:
            self._report(row)
        if not self.never_faults:
            self.crash_if_due(CrashPoint.AT_BOUNDARY)

    async def _orders(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; True if one arrived."""
        arrival = self._arrival = self._loop.create_future()
        timer = self._loop.call_later(seconds, _settle, arrival, False)
        try:
            return await arrival
        finally:
            self._arrival = None
            timer.cancel()

    def _report(self, row: SimRow) -> None:
        if not self.never_faults and self.around.fails(row.request, row.granted.attempt):
            del self._live[row.request.id]
            self._offered_rows = 0
            self._fail("the model raised", row.granted)
        elif row.step >= row.steps:
            self._finish(row)
        elif row.owes_commit:
            commit = m.Commit(request=row.request.id, attempt=row.granted.attempt, step=row.step, since=row.committed)
            self.send(commit, row.flight(row.committed))
            row.committed = row.step

    def _finish(self, row: SimRow) -> None:
        digest = row.digest
        if not self.never_faults:
            self.crash_if_due(CrashPoint.BEFORE_RESULT)
            digest = self.around.digest_used(digest, self.id)
        del self._live[row.request.id]
        self._send_result(row, digest, self.latent_salt)

    def _send_result(self, row: SimRow, digest: str, salt: str) -> None:
        self.around.finished(self, row, digest, self.numerics.tensors(row.request, digest, salt))

    def _measure(self, rows: int, seconds: float) -> None:
        if rows * 2 >= self.rows and seconds > 0:
            speed = rows / seconds
            self._speed = speed if self._speed is None else 0.9 * self._speed + 0.1 * speed

    def _pull(self) -> None:
        follows = self.crew.follows
        free = self.rows - len(self._live) if self._rolls and not follows else 0
        if free != self._offered_rows and (free or follows):
            self.send(m.Pull(free_rows=free, row_steps_per_s=self._speed, answered=self._grants))
            self._offered_rows = free

    # -- orders --------------------------------------------------------------------------------------------------------

    async def _apply(self, message: m.AnyMessage) -> None:
        match message:
            case m.Load():
                await self._load(message)
            case m.Recall():
                for request in message.requests:
                    self._hand_back(request)
            case m.Discard():
                for row in [row for row in self._live.values() if row.request.work is message.work]:
                    del self._live[row.request.id]
                self._offered_rows = 0
            case m.Fenced():
                fenced = self._live.get(message.request)
                if fenced is not None and fenced.granted.attempt == message.attempt:
                    del self._live[message.request]
                self._offered_rows = 0
            case crews.Prepare() | crews.Form() | crews.Disband() | crews.Forward():
                asked = (message.rows, message.is_exact) if isinstance(message, crews.Forward) else (self.rows, True)
                (rows, is_exact), began = asked, self._loop.time()
                await self.crew.apply(message, self.pace.part(rows, self.crew.degree, is_exact))
                if isinstance(message, crews.Forward):
                    activity = Activity.ROLLOUT if is_exact else Activity.PREVIEW
                    self._spans.worked(activity, began, self._loop.time())
            case m.FormGang() | m.Train() | m.Publish() | m.Save() | m.Restore():
                await self._train(message)
            case m.Drain():
                for request in list(self._live):
                    self._hand_back(request)
                raise WorkerExited
            case _:
                raise TypeError(f"a worker cannot apply {type(message).__name__}")

    def _take(self, grant: m.Grant, blob: bytes) -> None:
        self._grants += 1
        flights = _read_flights(blob) if blob != m.NO_FLIGHTS else {}
        for granted in grant.leases:
            problem = self._admit(granted, flights.get(granted.request.id))
            if problem:
                self._fail(problem, granted)
            elif self.crew.follows:
                self._hand_back(granted.request.id)
        self._offered_rows = 0

    def _admit(self, granted: m.Granted, blob: bytes | None) -> str:
        """Start the row; return why not, or nothing."""
        request = granted.request
        digest = self._holds.get(request.weights)
        if request.id in self._live:
            return f"{request.id} is in flight here"
        if len(self._live) >= self.rows:
            raise OverflowError(f"{request.id} was granted to {self.id}, whose {self.rows} rows are all in flight")
        if digest is None:
            return f"{request.weights} is not held"
        row = start_row(granted, digest, blob, self.numerics)
        if isinstance(row, str):
            return row
        self._live[request.id] = row
        return ""

    def _hand_back(self, request: RequestId) -> None:
        row = self._live.pop(request, None)
        self._offered_rows = 0
        if row is not None:
            self.send(
                m.HandBack(request=request, attempt=row.granted.attempt, step=row.step),
                row.flight() if row.step else b"",
            )
            delay_s = self.around.late_result_delay(self.id)
            if delay_s is not None:
                # Of an attempt that was given up: its tensors are like no accepted ones, and must never be kept.
                self._loop.call_later(delay_s, self._send_result, row, row.digest, LATE)

    async def _load(self, load: m.Load) -> None:
        began = self._loop.time()
        await self.take_time(self.pace.load(load.weights, is_held=load.weights in self._holds))
        self._spans.worked(Activity.LOAD, began, self._loop.time())
        self._holds = {held: digest for held, digest in self._holds.items() if held in (load.weights, *load.keep)}
        if load.weights not in self._holds:
            self._holds[load.weights] = self.around.read_weights(load, self.id)
        self.send(m.Held(weights=load.weights, digest=self._holds[load.weights]))

    async def _train(self, order: GangOrder) -> None:
        trainer = self.trainer
        if trainer is None:
            raise TypeError(f"{self.id} was ordered to {type(order).__name__} but has no training role")
        began = self._loop.time()
        switch_s = self.pace.switch() if isinstance(order, m.Train) else None
        if isinstance(order, m.FormGang | m.Train | m.Save):
            for request in list(self._live):
                self._hand_back(request)
            self._offered_rows = 0
        if isinstance(order, m.Train):
            self._rolls = order.last or order.samples is not None
        await obey(order, trainer, self.pace, self)
        if switch_s is not None:
            self._spans.trained(began, self._loop.time(), switch_s)
        else:
            activity = Activity.LOAD if isinstance(order, m.Restore | m.FormGang) else Activity.PUBLISH
            self._spans.worked(activity, began, self._loop.time())

    # -- heartbeats and time -------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._loop.time()
        progress = tuple(
            [m.Progress(row.request.id, row.granted.attempt, self._reached(row, now)) for row in self._live.values()]
        )
        self.send(m.Alive(progress=progress, spans=self._spans.take(now)))

    def _reached(self, row: SimRow, now: float) -> int:
        """Current step of the row, including the steps of a run ahead that is under way."""
        if self._ahead is None or row not in self._ahead[0]:
            return row.step
        _, began, seconds = self._ahead
        return row.step + min(row.steps_ahead, int((now - began) / seconds + ROUNDING))

    async def take_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not self._is_awake:
            await self._woken.wait()

    def crash_if_due(self, point: CrashPoint) -> None:
        if not self.never_faults and self.around.should_crash(point, self.id):
            raise Crashed(point.value)

    def _fail(self, problem: str, granted: m.Granted) -> None:
        self.send(m.Failed(problem=problem, request=granted.request.id, attempt=granted.attempt))


def _settle(waiting: asyncio.Future[bool], has_arrived: bool) -> None:
    if not waiting.done():
        waiting.set_result(has_arrived)
