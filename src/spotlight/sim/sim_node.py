"""A simulated node: drives `AgentCore` over one simulated connection, simulated workers and simulated judges."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from math import inf
from typing import Protocol

import msgspec

from spotlight.compute.profiling.pace import Pace
from spotlight.compute.rewards.combination import Verdict
from spotlight.compute.rewards.config import Term
from spotlight.core import messages as m
from spotlight.core.errors import EnvironmentProblem, Stopped
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.node.agent_core import AgentCore
from spotlight.node.agent_effects import Scoring
from spotlight.node.crews import NodeCrews
from spotlight.node.judge import Judge
from spotlight.node.node_settings import NodeSettings
from spotlight.node.notices.notice import Notice
from spotlight.node.unloading import NearStore, stored_sample
from spotlight.sim.crash_points import Broken, CrashPoint
from spotlight.sim.far_store import SimFarStore
from spotlight.sim.fault_policy import NoFaults
from spotlight.sim.frames import Carry, Frame, Pipe
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.numerics import Numerics
from spotlight.sim.rendezvous import SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_gang import SimGangs
from spotlight.sim.sim_link import Direction, SimLink
from spotlight.sim.sim_rewards import SimPicture, reward_processes
from spotlight.sim.sim_trainer import SimTrainer
from spotlight.sim.sim_worker import SimWorker
from spotlight.sim.storage import NodeFlights, SimStorage

REWARD_PROCESSES = 2
"""Reward processes per node where faults may happen."""
REUSED = "other tensors"
"""Digest of device memory whose set was dropped."""


class NodeWorld(Protocol):
    """The part of the world that a node uses."""

    policy: NoFaults
    storage: SimStorage
    numerics: Numerics
    machines: SimMachineSettings
    gangs: SimGangs
    is_exact: bool
    """Whether samples and updates have the same bits on every worker."""

    rewards: Sequence[Term]
    carry: Carry | None
    """Encodes and decodes messages; None: they are passed on as they are."""

    def is_reward_down(self, key: str) -> bool:
        """Whether the reward of this key cannot score now."""

    def arrived(self, node: NodeId, frame: Frame, blob: bytes) -> None: ...

    def link_broke(self, node: NodeId) -> None:
        """The node's connection is broken for a while."""

    def link_resumed(self, node: NodeId) -> None: ...

    def kill(self, name: str) -> None:
        """End the node of this name, which returns unless it is no longer wanted."""

    def machine_failed(self, error: BaseException) -> None:
        """Report a defect of the simulation."""


class SimNode:
    """Alive from its construction until `die`."""

    def __init__(self, node: NodeId, spec: NodeSpec, world: NodeWorld, away: Collection[int] = ()) -> None:
        """`away` are slots that are absent at the start."""
        self.id = node
        self.spec = spec
        self._world = world
        self._policy = policy = world.policy
        flights, is_far = NodeFlights(world.storage, node), spec.slot_class is SlotClass.SPOT and policy.is_far(node)
        self._far = SimFarStore(flights, partial(policy.store_s, node)) if is_far else None
        self._loop = asyncio.get_running_loop()
        # Constant without faults; `repeat` avoids a Python call per message.
        latency_s = repeat(policy.tempo.latency_s).__next__ if policy.never_faults else partial(policy.latency_s, node)
        self.link = None if policy.never_faults else self._linked(latency_s)
        """None without faults: its connection never breaks."""
        self.up: Pipe | Direction = Pipe(latency_s, partial(world.arrived, node)) if self.link is None else self.link.up
        self.down: Pipe | Direction = Pipe(latency_s, self._receive) if self.link is None else self.link.down
        self._files: dict[str, tuple[str, str]] = {}
        """Announced digest and digest of the copied bytes, by path on this node."""
        self._copied_at = 0.0
        """End of the newest copy of weights; the next one begins then."""
        self.workers: dict[int, SimWorker] = {}
        """Workers by slot."""
        self._lives: dict[int, asyncio.Task[str]] = {}
        self._scoring: set[asyncio.Task[None]] = set()
        count = 0 if policy.never_faults else REWARD_PROCESSES
        self._reward_processes = reward_processes(world.rewards, count, policy.tempo.start_s, world.is_reward_down)
        self._judge = Judge[SimPicture](self._reward_processes, waits=partial(self.report, None)) if count else None
        """None without faults: a score then takes one timer, not three tasks."""
        self._away = set(away)
        self._to_start: dict[int, WorkerId] = {}
        """Workers that start as soon as their slot is present."""
        self._ended = asyncio.Event()
        self._rendezvous = SimRendezvous()
        settings = self._settings()
        self._core = AgentCore(settings, self, self._rendezvous, self._far or NearStore(flights), self._loop)
        self.report(None, settings.hello())
        self.send_from = self._core.from_worker
        self._core.begin()

    def _linked(self, latency_s: Callable[[], float]) -> SimLink:
        return SimLink(latency_s, partial(self._world.arrived, self.id), self._receive, self)

    # -- events of its link --------------------------------------------------------------------------------------------

    def broke(self) -> None:
        self._world.link_broke(self.id)

    def resumed(self) -> None:
        self._world.link_resumed(self.id)

    def over(self) -> None:
        self._world.kill(self.spec.name)

    def _settings(self) -> NodeSettings:
        machines, policy = self._world.machines, self._policy
        return NodeSettings(
            node=self.id,
            spec=self.spec,
            elastic=machines.elastic,
            heads=machines.heads,
            token_pixels=machines.token_pixels,
            heartbeat_s=policy.tempo.heartbeat_s,
            # No worker is silent where no fault happens, and watching takes time.
            silence_s=inf if policy.never_faults else machines.silence_s,
            start_s=machines.start_s,
            drain_s=machines.drain_s,
            is_far=self._far is not None,
            first_pause_s=policy.tempo.restart_s,
        )

    @property
    def crews(self) -> NodeCrews:
        return self._core.crews

    def die(self) -> None:
        """End the node and all its workers at once; sent messages may still arrive.

        Drops all references that lead back to the node, so that it is freed when the last message has arrived.
        """
        self._core.leave()
        self.down.cut()
        if self._judge is not None:
            self._judge.cancel()
        for task in (*self._lives.values(), *self._scoring):
            task.cancel()
        for known in (self._lives, self.workers, self._to_start):
            known.clear()
        self._ended.set()

    async def drain(self) -> None:
        """Order workers to hand back and exit, start no others, and wait for the end of the node."""
        self._core.drain()
        await self._ended.wait()

    def kill_on(self, number: int) -> None:
        """Kill the worker on a slot."""
        life = self._lives.get(number)
        if life is not None:
            life.cancel()

    def take(self, number: int) -> None:
        """Remove a slot until `give`, and kill its worker."""
        self._away.add(number)
        self.kill_on(number)

    def give(self, number: int) -> None:
        """Return a slot: its next worker starts."""
        self._away.discard(number)
        self._loop.call_soon(self._start, number)

    def warn(self, notice: Notice) -> Notice | None:
        """Apply a source's notice; return the one that is in force for the node."""
        self._core.warned(notice)
        return self._core.notices.in_force

    def worker_ids(self) -> list[WorkerId]:
        return [worker.id for _, worker in sorted(self.workers.items())]

    # -- effects of the core -------------------------------------------------------------------------------------------

    def report(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        envelope, carry = m.Envelope(worker, message), self._world.carry
        frame = envelope if carry is None else carry(envelope)
        self.up.put(frame, b"")
        if self._policy.never_faults:
            return
        for delay in self._policy.copies(message):
            if delay:
                self._loop.call_later(delay, self.up.put, frame, b"")
            else:
                self.up.put(frame, b"")

    def start_worker(self, slot: int, worker: WorkerId) -> None:
        self._to_start[slot] = worker
        self._loop.call_soon(self._start, slot)

    def kill_worker(self, worker: WorkerId) -> None:
        for number, known in sorted(self.workers.items()):
            if known.id == worker:
                self.kill_on(number)

    def is_relaying(self, worker: WorkerId) -> bool:
        return False

    def open(self, blob: bytes) -> tuple[None, bytes]:
        return None, blob

    def score(self, scoring: Scoring, granted: m.Granted, picture: None) -> None:
        request, digest = granted.request, scoring.result.digest
        seconds = self._policy.score_s(request, self.id)
        if self._judge is None:
            verdict = Verdict(self._world.numerics.score(request, digest))
            self._loop.call_later(seconds, self._judged, scoring, verdict)
        else:
            score = None if self._policy.is_unscorable(request) else self._world.numerics.score(request, digest)
            judging = asyncio.create_task(self._score(scoring, SimPicture(request, score, seconds)))
            self._scoring.add(judging)
            judging.add_done_callback(self._scoring.discard)

    def copy(self, load: m.Load) -> None:
        is_here = self._files.get(f"{self.id}/{load.path}", ("", ""))[0] == load.digest
        self._copied_at = self._loop.time() + (0.0 if is_here else self._policy.fetch_s(self.id))
        if self._copied_at > self._loop.time():
            self._loop.call_at(self._copied_at, self._copied, load)
        else:
            self._copied(load)

    def _copied(self, load: m.Load) -> None:
        if self._ended.is_set():
            return
        if not self._core.is_wanted(load.weights):
            self._core.copied(load, None)
            return
        path = f"{self.id}/{load.path}"
        if self._files.get(path, ("", ""))[0] != load.digest:
            try:
                content = self._policy.copied(self._world.storage.weights_at(load.path), self.id)
            except EnvironmentProblem as problem:
                self._core.copied(load, problem)
                return
            self._files[path] = (load.digest, content)
        self._core.copied(load, msgspec.structs.replace(load, path=path))

    def delete(self, path: str) -> None:
        del self._files[path]

    def spoil(self, path: str) -> None:
        self._files[path] = ("", self._files[path][1])

    def all_started(self) -> None:
        pass

    def end(self, why: str) -> None:
        self._world.kill(self.spec.name)

    # -- for workers ---------------------------------------------------------------------------------------------------

    def finished(self, worker: SimWorker, row: SimRow, digest: str, blob: bytes) -> None:
        self._core.from_worker(worker.id, row.result(digest), blob)

    def finished_late(self, worker: SimWorker, row: SimRow, digest: str, blob: bytes) -> None:
        """The agent drops the result. Once the hand-back is reported it also goes past the agent, to be fenced."""
        self.finished(worker, row, digest, blob)
        if row.request.work is Work.ROLLOUT and not self._core.is_storing(worker.id):
            result, score = row.result(digest), self._world.numerics.score(row.request, digest)
            with suppress(Stopped):
                payload = stored_sample(result, blob, lambda: blob, self._world.storage)
                self.report(worker.id, msgspec.structs.replace(result, payload=payload, score=score))

    def kill_reward_process(self) -> None:
        """Kill every reward process, idle or busy."""
        for _, processes in self._reward_processes:
            for process in processes:
                process.kill()

    def stored(self, load: m.Load) -> str:
        return self._files[load.path][1]

    def brings(self, worker: WorkerId, weights: WeightsId) -> bool:
        if worker not in self.worker_ids() or not self._core.is_wanted(weights):
            return False
        # Copies wait for the one under way, and a Load waits for the flights of a grant before it.
        if self._loop.time() <= max(self._copied_at, self._far.read_at if self._far is not None else 0.0):
            return True
        self._world.machine_failed(Broken(f"{worker} lacks {weights}, whose copy was damaged, and nothing brings it"))
        return False

    def memory_of(self, holder: WorkerId, weights: WeightsId) -> str | None:
        held = next((worker.holds for worker in self.workers.values() if worker.id == holder), None)
        return None if held is None else held.get(weights, REUSED)

    def read_back(self, digest: str, worker: WorkerId) -> str:
        return self._world.policy.misread(digest, worker)

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        return self._world.policy.should_crash(point, worker)

    def fails(self, request: Request, attempt: int) -> bool:
        return self._world.policy.fails(request, attempt)

    def late_result_delay(self, worker: WorkerId) -> float | None:
        return self._world.policy.late_result_delay(worker)

    def digest_used(self, digest: str, worker: WorkerId) -> str:
        return self._world.policy.misused(digest, worker)

    # -- inside --------------------------------------------------------------------------------------------------------

    async def _score(self, scoring: Scoring, picture: SimPicture) -> None:
        assert self._judge is not None
        verdict = await self._judge.judge(picture)
        if self._far is not None:
            await asyncio.sleep(self._policy.store_s(self.id))
        self._judged(scoring, verdict)

    def _judged(self, scoring: Scoring, verdict: Verdict) -> None:
        worker, result, tensors = scoring
        try:
            payload = stored_sample(result, tensors, lambda: tensors, self._world.storage)
        except Stopped as error:
            self._core.cannot_store(error)
        else:
            self._core.judged(Scoring(worker, msgspec.structs.replace(result, payload=payload), tensors), verdict)

    def _receive(self, frame: Frame, blob: bytes) -> None:
        assert frame is not None
        self._core.from_controller(frame.worker, frame.message, blob)

    def _start(self, slot: int) -> None:
        if slot not in self._to_start or slot in self._away:
            return
        worker = self._new_worker(self._to_start.pop(slot), trains=slot < self.spec.trains)
        self.workers[slot] = worker
        self._core.born(worker.id, worker.receive)
        life = self._lives[slot] = asyncio.create_task(worker.live())
        life.add_done_callback(partial(self._life_ended, slot))

    def _life_ended(self, slot: int, life: asyncio.Task[str]) -> None:
        if self._lives.get(slot) is not life:
            return  # The node died before.
        del self._lives[slot]
        worker = self.workers.pop(slot)
        worker.crew.leave()
        was_killed = life.cancelled()
        if not was_killed and (error := life.exception()) is not None:
            self._world.machine_failed(error)
            was_killed = True
        self._core.ended(worker.id, "killed" if was_killed else life.result(), was_killed)
        if worker.id in self.crews.members:
            self._world.machine_failed(Broken(f"{worker.id} is gone, but may still become a member of a crew"))

    def _new_worker(self, worker: WorkerId, trains: bool) -> SimWorker:
        world, salt = self._world, "" if self._world.is_exact else worker
        return SimWorker(
            id=worker,
            node=self.id,
            slot_class=self.spec.slot_class,
            rows=self.spec.fixed_rows,
            pace=self._pace(worker),
            around=self,
            trainer=self._new_trainer(salt) if trains else None,
            numerics=world.numerics,
            latent_salt=salt,
            rendezvous=self._rendezvous,
            kind=self.spec.kind or world.policy.kind(worker),
            machines=world.machines,
            never_faults=world.policy.never_faults,
            store=NodeFlights(world.storage, self.id) if self._far is None else None,
        )

    def _pace(self, worker: WorkerId) -> Pace:
        pace = self._policy.pace(worker, self.spec.slot_class)
        pace.slowness /= self.spec.speed
        return pace

    def _new_trainer(self, salt: str) -> SimTrainer:
        world = self._world
        return SimTrainer(world.storage, salt, world.numerics, world.gangs, world.machines.takes_stale)
