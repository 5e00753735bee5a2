"""One simulated worker: says and obeys what `runtime.worker` does, with hashes for tensors and timers for work.

Between two denoising steps it obeys what has arrived, in order; a heart beats beside. `Moment` names the points at
which somebody may strike it; it asks `Surroundings.struck` at each and dies there and then.
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
from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, RequestId, SlotClass, WeightsId
from spotlight.sim.beside import Beside
from spotlight.sim.crew_member import SimMembership
from spotlight.sim.heart import Heart
from spotlight.sim.moments import Left, Moment, Struck
from spotlight.sim.numerics import Numerics
from spotlight.sim.rooms import Rooms
from spotlight.sim.row import SimRow, taken_up
from spotlight.sim.sim_spans import SimSpans
from spotlight.sim.sim_trainer import SimTrainer, carry_out
from spotlight.sim.surroundings import Surroundings

_read_flights = msgspec.msgpack.Decoder(dict[str, bytes]).decode
ROUNDING = 1e-6
"""Of a step: what arrives this close after a boundary arrived at it."""


@dataclass(eq=False)
class SimWorker:
    """One life of a process on a slot; `live` is that life."""

    id: WorkerId
    node: NodeId
    slot_class: SlotClass
    rows: int
    pace: Pace
    around: Surroundings
    trainer: SimTrainer | None
    numerics: Numerics
    latent_salt: str
    """What a latent's last bits depend on outside of deterministic mode."""
    rooms: Rooms
    kind: str = ""
    """Of its GPU."""
    is_calm: bool = False
    """Nobody ever means it ill, so it need not ask."""
    _inbox: deque[tuple[m.AnyMessage, bytes]] = field(default_factory=deque)
    _live: dict[RequestId, SimRow] = field(default_factory=dict)
    _holds: dict[WeightsId, str] = field(default_factory=dict)
    _spans: SimSpans = field(default_factory=SimSpans)
    _rolls: bool = True
    _told_free: int = 0
    _grants: int = 0
    _speed: float | None = None
    _ahead: tuple[Sequence[SimRow], float, float] | None = None
    """Rows that are run ahead, since when, and the seconds of a step."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening: asyncio.Future[bool] | None = None
        """While it waits for orders: whether some came."""
        self.say: Callable[..., None] = partial(self.around.say, self.id)
        self.beside = Beside()
        self._is_awake = True
        self._woken = asyncio.Event()
        self._woken.set()
        # Weakly, so that of the thousands that die in a long run each is freed at once: nobody looks for garbage.
        me = weakref.proxy(self)
        known = weakref.ref(self)

        def beat() -> None:
            # It may have died, and be gone, at the very instant of a beat.
            if (living := known()) is not None:
                living._beat()

        self._heart = Heart(beat)
        self.crew = SimMembership(
            self.id,
            self.rooms,
            self.say,
            lambda: me._holds,
            lambda: {row.request.weights for row in me._live.values()},
            lambda moment: me.come_to(moment),
            self._woken.wait,
        )

    def tell(self, message: m.AnyMessage, blob: bytes) -> None:
        self._inbox.append((message, blob))
        listening = self._listening
        if listening is not None and not listening.done():
            listening.set_result(True)

    def freeze(self, seconds: float) -> None:
        """Neither hears, works nor speaks for a while; then goes on as if nothing had been."""
        self._is_awake = False
        self._heart.freeze()
        self._woken.clear()
        self._loop.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._is_awake = True
        self._woken.set()
        self._heart.thaw()

    async def live(self) -> str:
        """Until it exits; returns why. Being killed is the task's cancellation."""
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
        self.say(hello)
        self._heart.start(self.pace.heartbeat_s)
        try:
            await self._work()
        except Struck as should_crash:
            return str(should_crash)
        except Left:
            return "exited"
        finally:
            self.beside.stop()
            self._heart.stop()

    # -- the main loop -------------------------------------------------------------------------------------------------

    async def _work(self) -> NoReturn:
        """Turn after turn: what has arrived, then a step, or waiting for more."""
        inbox, crew = self._inbox, self.crew
        while True:
            while inbox:
                if not self._is_awake:
                    await self._woken.wait()
                message, blob = inbox.popleft()
                if isinstance(message, m.Grant):
                    self._take(message, blob)
                else:
                    await self._obey(message)
            still_s = 0.0 if crew.is_alone else crew.still_s()
            self._pull()
            if self._live and not still_s:
                await self._step()
                continue
            if still_s:
                await self._orders(still_s)
            else:
                listening = self._listening = self._loop.create_future()
                await listening
                self._listening = None
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
                    # Something arrived: up to the first boundary after that.
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
            self._tell_of(row)
        if not self.is_calm:
            self.come_to(Moment.AT_BOUNDARY)

    async def _orders(self, seconds: float) -> bool:
        """Until something arrives, but for so long at most; whether something did."""
        listening = self._listening = self._loop.create_future()
        timer = self._loop.call_later(seconds, _settle, listening, False)
        try:
            return await listening
        finally:
            self._listening = None
            timer.cancel()

    def _tell_of(self, row: SimRow) -> None:
        if not self.is_calm and self.around.fails(row.request, row.granted.attempt):
            del self._live[row.request.id]
            self._told_free = 0
            self._fail("the model raised", row.granted)
        elif row.step >= row.steps:
            self._finish(row)
        elif row.owes_commit:
            commit = m.Commit(request=row.request.id, attempt=row.granted.attempt, step=row.step, since=row.told)
            self.say(commit, row.flight(row.told))
            row.told = row.step

    def _finish(self, row: SimRow) -> None:
        digest = row.digest
        if not self.is_calm:
            self.come_to(Moment.BEFORE_RESULT)
            digest = self.around.digest_used(digest, self.id)
        del self._live[row.request.id]
        self._deliver(row, digest)

    def _deliver(self, row: SimRow, digest: str) -> None:
        self.around.finished(self, row, digest, self.numerics.tensors(row.request, digest, self.latent_salt))

    def _measure(self, rows: int, seconds: float) -> None:
        if rows * 2 >= self.rows and seconds > 0:
            speed = rows / seconds
            self._speed = speed if self._speed is None else 0.9 * self._speed + 0.1 * speed

    def _pull(self) -> None:
        follows = self.crew.follows
        free = self.rows - len(self._live) if self._rolls and not follows else 0
        if free != self._told_free and (free or follows):
            self.say(m.Pull(free_rows=free, row_steps_per_s=self._speed, answered=self._grants))
            self._told_free = free

    # -- orders --------------------------------------------------------------------------------------------------------

    async def _obey(self, message: m.AnyMessage) -> None:
        match message:
            case m.Load():
                await self._load(message)
            case m.Recall():
                for request in message.requests:
                    self._hand_back(request)
            case m.Discard():
                for row in [row for row in self._live.values() if row.request.work is message.work]:
                    del self._live[row.request.id]
                self._told_free = 0
            case m.Fenced():
                fenced = self._live.get(message.request)
                if fenced is not None and fenced.granted.attempt == message.attempt:
                    del self._live[message.request]
                self._told_free = 0
            case crews.Prepare() | crews.Form() | crews.Disband() | crews.Forward():
                asked = (message.rows, message.is_exact) if isinstance(message, crews.Forward) else (self.rows, True)
                (rows, is_exact), began = asked, self._loop.time()
                await self.crew.obey(message, self.pace.part(rows, self.crew.degree, is_exact))
                if isinstance(message, crews.Forward):
                    activity = Activity.ROLLOUT if is_exact else Activity.PREVIEW
                    self._spans.worked(activity, began, self._loop.time())
            case m.Train() | m.Publish() | m.Save() | m.Restore():
                await self._train(message)
            case m.Drain():
                for request in list(self._live):
                    self._hand_back(request)
                raise Left
            case _:
                raise TypeError(f"a worker cannot obey {type(message).__name__}")

    def _take(self, grant: m.Grant, blob: bytes) -> None:
        self._grants += 1
        flights = _read_flights(blob) if blob != m.NO_FLIGHTS else {}
        for granted in grant.leases:
            problem = self._admit(granted, flights.get(granted.request.id))
            if problem:
                self._fail(problem, granted)
            elif self.crew.follows:
                self._hand_back(granted.request.id)
        self._told_free = 0

    def _admit(self, granted: m.Granted, blob: bytes | None) -> str:
        """Take it in, or say why not."""
        request = granted.request
        digest = self._holds.get(request.weights)
        if request.id in self._live:
            return f"{request.id} is in flight here"
        if len(self._live) >= self.rows:
            raise OverflowError(f"{request.id} was granted to {self.id}, whose {self.rows} rows are all in flight")
        if digest is None:
            return f"{request.weights} is not held"
        row = taken_up(granted, digest, blob, self.numerics)
        if isinstance(row, str):
            return row
        self._live[request.id] = row
        return ""

    def _hand_back(self, request: RequestId) -> None:
        row = self._live.pop(request, None)
        self._told_free = 0
        if row is not None:
            self.say(
                m.HandBack(request=request, attempt=row.granted.attempt, step=row.step),
                row.flight() if row.step else b"",
            )
            delay_s = self.around.late_result_delay(self.id)
            if delay_s is not None:
                self._loop.call_later(delay_s, self._deliver, row, row.digest)

    async def _load(self, load: m.Load) -> None:
        began = self._loop.time()
        await self.take_time(self.pace.load(load.weights, is_held=load.weights in self._holds))
        self._spans.worked(Activity.LOAD, began, self._loop.time())
        self._holds = {held: digest for held, digest in self._holds.items() if held in (load.weights, *load.keep)}
        if load.weights not in self._holds:
            self._holds[load.weights] = self.around.read_weights(load, self.id)
        self.say(m.Held(weights=load.weights, digest=self._holds[load.weights]))

    async def _train(self, order: m.Train | m.Publish | m.Save | m.Restore) -> None:
        trainer = self.trainer
        if trainer is None:
            raise TypeError(f"{self.id} was ordered to {type(order).__name__} but has no training role")
        began = self._loop.time()
        switch_s = self.pace.switch() if isinstance(order, m.Train) else None
        if isinstance(order, m.Train | m.Save):
            for request in list(self._live):
                self._hand_back(request)
            self._told_free = 0
        try:
            if isinstance(order, m.Train):
                self._rolls = order.last or order.samples is not None
            await carry_out(order, trainer, self.pace, self)
        except Stopped as problem:
            self.say(m.Failed(problem=str(problem), exit_code=problem.exit_code))
        if switch_s is not None:
            self._spans.trained(began, self._loop.time(), switch_s)
        else:
            activity = Activity.LOAD if isinstance(order, m.Restore) else Activity.PUBLISH
            self._spans.worked(activity, began, self._loop.time())

    # -- small things --------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        now = self._loop.time()
        progress = tuple(
            [m.Progress(row.request.id, row.granted.attempt, self._reached(row, now)) for row in self._live.values()]
        )
        self.say(m.Alive(progress=progress, spans=self._spans.take(now)))

    def _reached(self, row: SimRow, now: float) -> int:
        """The step that it is at, though steps that are run ahead are counted at their end only."""
        if self._ahead is None or row not in self._ahead[0]:
            return row.step
        _, began, seconds = self._ahead
        return row.step + min(row.steps_ahead, int((now - began) / seconds + ROUNDING))

    async def take_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if not self._is_awake:
            await self._woken.wait()

    def come_to(self, moment: Moment) -> None:
        if not self.is_calm and self.around.should_crash(moment, self.id):
            raise Struck(moment.value)

    def _fail(self, problem: str, granted: m.Granted) -> None:
        self.say(m.Failed(problem=problem, request=granted.request.id, attempt=granted.attempt))


def _settle(waiting: asyncio.Future[bool], has_come: bool) -> None:
    if not waiting.done():
        waiting.set_result(has_come)
