"""A simulated node: the agent's part of the protocol, one connection, and a series of workers on every slot.

Invariants, as of the real agent: a worker's messages are sent in order; `Gone` follows all of them, including the
verdicts on its finished samples that come within VERDICTS_S; the node ends with the controller.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol

import msgspec

from spotlight import __version__
from spotlight.compute.rewards.combination import Verdict
from spotlight.compute.rewards.config import Term
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.crew_messages import Crewed, Demand
from spotlight.core.events import SCHEMA
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, WeightsId, Work
from spotlight.node.crews import NodeCrews
from spotlight.node.judge import VERDICTS_S, Judge
from spotlight.node.leases import Leases
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import NoFaults
from spotlight.sim.frames import Carry, Frame, Pipe
from spotlight.sim.numerics import Numerics
from spotlight.sim.rendezvous import SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_gang import SimGangs
from spotlight.sim.sim_rewards import SimPicture, reward_processes
from spotlight.sim.sim_trainer import SimTrainer
from spotlight.sim.sim_worker import SimWorker
from spotlight.sim.storage import SimStorage

PREVIEW = Work.PREVIEW
REWARD_PROCESSES = 2
"""Reward processes per node where faults may happen."""
HEADS, TOKEN_PIXELS = 12, 64
"""Figures of `words`, which the simulated models represent."""


class NodeWorld(Protocol):
    """The part of the world that a node uses."""

    policy: NoFaults
    storage: SimStorage
    numerics: Numerics
    elastic: ElasticConfig
    rendezvous: Callable[[], SimRendezvous]
    """Makes the rendezvous of a node."""
    gangs: SimGangs
    is_exact: bool
    """Whether samples and updates have the same bits on every worker."""

    rewards: Sequence[Term]
    carry: Carry | None
    """Encodes and decodes messages; None: they are passed on as they are."""

    def is_reward_down(self, key: str) -> bool:
        """Whether the reward of this key cannot score now."""

    def arrived(self, node: NodeId, frame: Frame, blob: bytes) -> None: ...

    def machine_failed(self, error: BaseException) -> None:
        """Report a defect of the simulation."""


class SimNode:
    """Alive from its construction until `die`."""

    def __init__(self, node: NodeId, spec: NodeSpec, world: NodeWorld, away: Collection[int] = ()) -> None:
        """`away` are slots that are absent at the start."""
        self.id = node
        self.spec = spec
        self._world = world
        self._policy = world.policy
        self._loop = asyncio.get_running_loop()
        policy = world.policy
        # Constant without faults; `repeat` avoids a Python call per message.
        latency_s = repeat(policy.tempo.latency_s).__next__ if policy.never_faults else partial(policy.latency_s, node)
        self.up = Pipe(latency_s, partial(world.arrived, node))
        self.down = Pipe(latency_s, self._receive)
        self._loads: dict[WeightsId, m.Load] = {}
        self._copied: dict[WeightsId, tuple[str, str]] = {}
        """Announced digest and digest of the copied bytes, by weights."""
        self.workers: dict[int, SimWorker] = {}
        """Workers by slot."""
        self._by_name: dict[WorkerId, SimWorker] = {}
        """Workers by id."""
        self._lives: dict[int, asyncio.Task[str]] = {}
        self._judging: dict[WorkerId, int] = {}
        self._scoring: set[asyncio.Task[None]] = set()
        count = 0 if policy.never_faults else REWARD_PROCESSES
        self._reward_processes = reward_processes(world.rewards, count, policy.tempo.start_s, world.is_reward_down)
        self._judge = Judge[SimPicture](self._reward_processes, waits=partial(self._send, None)) if count else None
        """None without faults: a score then takes one timer, not three tasks."""
        self.is_alive = True
        self._leases = Leases()
        self._rendezvous = world.rendezvous()
        self._may_crew = len(world.elastic.legal_degrees(HEADS, spec.slots)) > 1
        """Whether there is more than one layout; if not, crews are skipped."""
        self.crews = NodeCrews(
            node,
            world.elastic,
            HEADS,
            TOKEN_PIXELS,
            "",
            self,
            self._rendezvous,
            self._leases.of,
            world.policy.tempo.heartbeat_s,
        )
        hello = m.NodeHello(
            schema=SCHEMA,
            code=__version__,
            node=node,
            slot_class=spec.slot_class,
            slots=spec.slots,
            price=spec.price,
        )
        self._send(None, hello)
        self._draining = asyncio.Event()
        self._present = [asyncio.Event() for _ in range(spec.slots)]
        for number in sorted(set(range(spec.slots)) - set(away)):
            self.give(number)
        self._slots = [asyncio.create_task(self._run_slot(number)) for number in range(spec.slots)]

    def die(self) -> None:
        """End the node and all its workers at once; sent messages may still arrive.

        Drops all references that lead back to the node, so that it is freed when the last message has arrived.
        """
        self.is_alive = False
        self.down.cut()
        self.crews.leave()
        if self._judge is not None:
            self._judge.cancel()
        for task in (*self._slots, *self._lives.values(), *self._scoring):
            task.cancel()
        for known in (self._slots, self._lives, self.workers, self._by_name):
            known.clear()

    async def drain(self, seconds: float) -> None:
        """Order workers to hand back and exit, start no others, and wait at most `seconds`."""
        self._draining.set()
        for _, worker in sorted(self.workers.items()):
            worker.receive(m.Drain(), b"")
        await asyncio.wait(self._slots, timeout=seconds)

    def kill_on(self, number: int) -> None:
        """Kill the worker on a slot."""
        life = self._lives.get(number)
        if life is not None:
            life.cancel()

    def take(self, number: int) -> None:
        """Remove a slot until `give`, and kill its worker."""
        self._present[number].clear()
        self.kill_on(number)

    def give(self, number: int) -> None:
        """Return a slot: its next worker starts."""
        self._present[number].set()

    def warn(self, warned: m.Warned) -> None:
        self.crews.warned(warned.kind, warned.seconds)
        self._send(None, warned)

    def worker_ids(self) -> list[WorkerId]:
        return [worker.id for _, worker in sorted(self.workers.items())]

    # -- for crews -----------------------------------------------------------------------------------------------------

    def send(self, worker: WorkerId, message: m.AnyMessage) -> None:
        for known in self.workers.values():
            if known.id == worker:
                known.receive(message, b"")

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        for number, known in sorted(self.workers.items()):
            if known.id == worker:
                self.kill_on(number)

    def report(self, crewed: Crewed) -> None:
        self._send(None, crewed)

    # -- for workers ---------------------------------------------------------------------------------------------------

    def send_from(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None:
        if self._may_crew and self.is_alive:
            if self.crews.receive(worker, message):
                return
            if isinstance(message, m.HandBack):
                self._leases.ended(worker, message.request, message.attempt)
                self.crews.changed()
        self._send(worker, message, blob)

    def finished(self, worker: SimWorker, row: SimRow, digest: str, blob: bytes) -> None:
        request, attempt = row.request, row.granted.attempt
        if self._may_crew:
            self._leases.ended(worker.id, request.id, attempt)
            self.crews.changed()
        self._judging[worker.id] = self._judging.get(worker.id, 0) + 1
        result = m.Result(request=request.id, attempt=attempt, digest=digest, steps=row.step - row.began)
        tensors = b"" if request.work is PREVIEW else blob
        seconds = self._policy.score_s(request, self.id)
        if self._judge is None:
            verdict = Verdict(self._world.numerics.score(request, digest))
            self._loop.call_later(seconds, self._judged, worker.id, result, verdict, tensors)
        else:
            score = None if self._policy.is_unscorable(request) else self._world.numerics.score(request, digest)
            judging = asyncio.create_task(self._score(worker.id, result, SimPicture(request, score, seconds), tensors))
            self._scoring.add(judging)
            judging.add_done_callback(self._scoring.discard)

    async def _score(self, worker: WorkerId, result: m.Result, picture: SimPicture, tensors: bytes) -> None:
        assert self._judge is not None
        self._judged(worker, result, await self._judge.judge(picture), tensors)

    def _judged(self, worker: WorkerId, result: m.Result, verdict: Verdict, tensors: bytes) -> None:
        self._judging[worker] -= 1
        self._send(worker, msgspec.structs.replace(result, score=verdict.score, problem=verdict.problem), tensors)

    def kill_reward_process(self) -> None:
        """Kill every reward process, idle or busy."""
        for _, processes in self._reward_processes:
            for process in processes:
                process.kill()

    def read_weights(self, load: m.Load, worker: WorkerId) -> str:
        return self._world.policy.misread(self._copied[load.weights][1], worker)

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        return self._world.policy.should_crash(point, worker)

    def fails(self, request: Request, attempt: int) -> bool:
        return self._world.policy.fails(request, attempt)

    def late_result_delay(self, worker: WorkerId) -> float | None:
        return self._world.policy.late_result_delay(worker)

    def digest_used(self, digest: str, worker: WorkerId) -> str:
        return self._world.policy.misused(digest, worker)

    # -- the agent -----------------------------------------------------------------------------------------------------

    async def _run_slot(self, number: int) -> None:
        """Run one worker after another on a slot, from the end of the boot until drained."""
        if self.spec.boot_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), self.spec.boot_s)
        lives = 0
        while not self._draining.is_set():
            await self._present[number].wait()
            lives += 1
            worker = self._new_worker(WorkerId(f"{self.id}/{number}.{lives}"), trains=number < self.spec.trains)
            self.workers[number] = self._by_name[worker.id] = worker
            for load in self._loads.values():
                worker.receive(load, b"")
            life = self._lives[number] = asyncio.create_task(worker.live())
            await asyncio.wait({life})
            del self.workers[number], self._by_name[worker.id]
            worker.crew.leave()
            self.crews.died(worker.id, "killed" if life.cancelled() else "ended")
            self._leases.gone(worker.id)
            if not life.cancelled() and (error := life.exception()) is not None:
                self._world.machine_failed(error)
            cause = "killed" if life.cancelled() or life.exception() else life.result()
            given_up = self._loop.time() + VERDICTS_S
            while self._judging.get(worker.id) and self._loop.time() < given_up:
                await asyncio.sleep(self._world.policy.tempo.score_s)
            self._send(None, m.Gone(worker=worker.id, cause=cause))
            await asyncio.sleep(self._world.policy.tempo.restart_s)

    def _new_worker(self, worker: WorkerId, trains: bool) -> SimWorker:
        world, salt = self._world, "" if self._world.is_exact else worker
        return SimWorker(
            id=worker,
            node=self.id,
            slot_class=self.spec.slot_class,
            rows=self.spec.fixed_rows,
            pace=world.policy.pace(worker, self.spec.slot_class),
            around=self,
            trainer=SimTrainer(world.storage, salt, world.numerics, world.gangs) if trains else None,
            numerics=world.numerics,
            latent_salt=salt,
            rendezvous=self._rendezvous,
            kind=world.policy.kind(worker),
            never_faults=world.policy.never_faults,
        )

    def _receive(self, frame: Frame, blob: bytes) -> None:
        assert frame is not None
        message = frame.message
        if isinstance(message, m.Load):
            self._load(message, frame.worker)
        elif isinstance(message, Demand):
            self.crews.demand(message)
        else:
            self._relay(frame.worker, message, blob)

    def _load(self, load: m.Load, worker: WorkerId | None) -> None:
        known = self._copied.get(load.weights)
        if known is None or known[0] != load.digest:
            content = self._world.storage.weights.get(load.path)
            if content is None:
                self._send(None, m.Failed(problem=f"{load.path} is not there"))
                return
            self._copied[load.weights] = (load.digest, content)
        self._loads.pop(load.weights, None)
        self._loads[load.weights] = load
        for old in sorted(set(self._loads) - {load.weights, *load.keep}):
            del self._loads[old]
        self._relay(worker, load, b"")

    def _relay(self, worker: WorkerId | None, message: m.AnyMessage, blob: bytes) -> None:
        if not self._may_crew and worker is not None:
            alone = self._by_name.get(worker)
            if alone is not None:
                alone.receive(message, blob)
            return
        if not self._may_crew:
            for known in self._addressed(worker):
                known.receive(message, blob)
            return
        for known in self._addressed(worker):
            self._leases.observe(known.id, message)
            if isinstance(message, m.Load):
                self.crews.dropped((message.weights, *message.keep))
            known.receive(message, blob)
        self.crews.changed()

    def _addressed(self, worker: WorkerId | None) -> list[SimWorker]:
        """All workers, or the one of that id if it is alive."""
        if worker is None:
            return [known for _, known in sorted(self.workers.items())]
        known = self._by_name.get(worker)
        return [known] if known is not None else []

    def _send(self, worker: WorkerId | None, message: m.AnyMessage, blob: bytes = b"") -> None:
        if not self.is_alive:
            return
        envelope, carry = m.Envelope(worker, message), self._world.carry
        frame = envelope if carry is None else carry(envelope)
        self.up.put(frame, blob)
        if self._policy.never_faults:
            return
        for delay in self._policy.copies(message):
            if delay:
                self._loop.call_later(delay, self.up.put, frame, blob)
            else:
                self.up.put(frame, blob)
