"""Faults by chance: the seed draws which kinds a storm has and how often, then when and where each one strikes.

Every kind draws from a stream of its own, so that a new kind leaves the others where they were. Faults stop at the end
of the safety phase; from then on the run must finish. What is a matter of identity (a sample that can never be made, a
picture without a reward) does not stop: an undisturbed run of the seed has the same.
"""

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NoReturn

from spotlight.compute.profiling.pace import Pace
from spotlight.controller.gang import DEATHS_ALLOWED
from spotlight.core import messages as m
from spotlight.core.events import Record
from spotlight.core.journal import Disk
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, SlotClass
from spotlight.sim.controller import PowerCut
from spotlight.sim.fakes import Streams, mark
from spotlight.sim.fault_policy import NoFaults, Tempo
from spotlight.sim.moments import Moment
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage


class Fault(StrEnum):
    """Kinds of faults; those of `Moment` are kinds too, each crash window by itself."""

    WORKER_KILLED = "worker killed"
    NODE_KILLED = "node killed"
    CONNECTION_LOST = "connection lost with words on their way"
    ADVISED = "advisory notice"
    NOTICED = "imminent notice, then killed"
    KILLED_EARLY = "killed earlier than promised"
    SPARED = "imminent notice, then not killed"
    ALL_SPOT_KILLED = "all spot killed at once"
    FLAPPING = "capacity flapping"
    STRAGGLER = "straggler"
    SILENCE = "silence, then a zombie"
    STALL = "connection stalled"
    REWARD_KILLED = "reward process killed"
    DOUBLED = "message doubled"
    REPLAYED = "message replayed late"
    HAUNTED = "result of an attempt that had ended"
    ATTEMPT_FAILED = "attempt failed"
    POISON = "sample that always fails"
    UNSCORABLE = "no reward"
    MISREAD = "weights misread"
    MISUSED = "sample of wrong weights"
    CRASH_BEFORE = "controller died before a record"
    CRASH_AFTER = "controller died after a record"
    TORN = "journal tail torn"
    JOURNAL_FULL = "disk full at a record"
    PAYLOAD_FULL = "disk full at a payload"
    PAYLOAD_LOST = "payload lost"
    PAYLOAD_DAMAGED = "payload damaged"


KINDS = (*Fault, *Moment)
MACHINES = (
    Fault.WORKER_KILLED,
    Fault.NODE_KILLED,
    Fault.CONNECTION_LOST,
    Fault.ADVISED,
    Fault.NOTICED,
    Fault.KILLED_EARLY,
    Fault.SPARED,
    Fault.ALL_SPOT_KILLED,
    Fault.FLAPPING,
    Fault.STRAGGLER,
    Fault.SILENCE,
    Fault.STALL,
    Fault.REWARD_KILLED,
)
"""Those that strike at a time, not at an occasion."""
PRESENT = 0.4
"""Share of storms that a kind is part of."""
MEAN_GAP_S = 8.0
"""Between two occasions for a fault of one kind."""
SLOWNESS = 20.0
FREQUENT = {
    Moment.AT_BOUNDARY: 0.04,
    Moment.BEFORE_RESULT: 0.04,
    Moment.TOGETHER: 0.2,
    Moment.SAVING: 0.8,
    Moment.SAVED: 0.8,
}
"""Shares of occasions that differ from the usual one: rollouts have many, checkpoints few."""
FAILURES_FORGIVEN = 2
"""Attempts of one sample that fail by chance: one less than make the dispatcher give it up."""
ORDERS = (
    (Moment.ACCUMULATING, Moment.ACCUMULATED, Moment.STEPPED, Moment.STEP_TOLD),
    (Moment.PUBLISHING, Moment.PUBLISHED),
    (Moment.SAVING, Moment.SAVED),
    (Moment.RESTORING,),
)
"""Crash windows of each kind of order to the gang."""
DEATHS_FORGIVEN = DEATHS_ALLOWED - 4
"""By chance over one kind of order: so many, and a few that die of something else, are not blamed on the order."""
REPEATABLE = (m.Pull, m.Commit, m.HandBack, m.Result, m.Held, m.Failed, m.Gone)
"""What a worker that tries again might say twice; the training worker's replies and greetings are said once."""


class Storm(NoFaults):
    """Answers by chance until it is over."""

    def __init__(self, seed: int, tempo: Tempo) -> None:
        super().__init__(tempo)
        self._streams = Streams(seed)
        self._rates = {kind: self._rate(self._streams[f"mix {kind}"]) for kind in KINDS}
        self.safety_s = self._streams["safety"].uniform(40.0, 160.0)
        self._seed = seed
        self._failures: Counter[str] = Counter()
        self.is_over = False
        self.fired: Counter[str] = Counter()

    @staticmethod
    def _rate(mix: random.Random) -> float:
        """Most kinds are absent from most storms, so that each is also seen among few others."""
        return mix.uniform(0.2, 1.0) if mix.random() < PRESENT else 0.0

    def stream(self, name: str) -> random.Random:
        return self._streams[name]

    def happens(self, kind: Fault | Moment, scale: float) -> bool:
        """Whether this occasion is one; counted if so."""
        rate = self._rates[kind]
        if self.is_over or not rate or self._streams[kind].random() >= rate * scale:
            return False
        self.fired[kind] += 1
        return True

    # -- what machines ask ---------------------------------------------------------------------------------------------

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        pace = super().pace(worker, slot_class)
        pace.step_s *= 0.5 + int(mark("pace", self._seed, worker)[:4], 16) / 0x8000
        pace.adopt_s = pace.load_s * int(mark("adopt", self._seed, worker)[:4], 16) / 0x10000
        # Up to eight steps: steps are taken while it is written, and it may be under way when the next is due.
        pace.save_s = pace.load_s + pace.train_s * int(mark("save", self._seed, worker)[:4], 16) / 0x2000
        return pace

    def latency_s(self, node: NodeId) -> float:
        return self.tempo.latency_s * self._streams["latency"].uniform(0.2, 2.0)

    def score_s(self, request: Request, node: NodeId) -> float:
        return self.tempo.score_s * self._streams["score"].uniform(0.5, 1.5)

    def should_crash(self, moment: Moment, worker: WorkerId) -> bool:
        deaths = sum(self.fired[each] for order in ORDERS if moment in order for each in order)
        return deaths < DEATHS_FORGIVEN and self.happens(moment, FREQUENT.get(moment, 0.4))

    def fails(self, request: Request, attempt: int) -> bool:
        if self._is_cursed(Fault.POISON, request, 0.03):
            return True
        if self._failures[request.id] < FAILURES_FORGIVEN and self.happens(Fault.ATTEMPT_FAILED, 0.05):
            self._failures[request.id] += 1
            return True
        return False

    def is_unscorable(self, request: Request) -> bool:
        return self._is_cursed(Fault.UNSCORABLE, request, 0.08)

    def late_result_delay(self, worker: WorkerId) -> float | None:
        delay_s = self._streams["haunting"].uniform(0.0, 6.0)
        return delay_s if self.happens(Fault.HAUNTED, 0.6) else None

    def misread(self, digest: str, worker: WorkerId) -> str:
        return mark("misread", digest) if self.happens(Fault.MISREAD, 0.05) else digest

    def misused(self, digest: str, worker: WorkerId) -> str:
        return mark("misused", digest) if self.happens(Fault.MISUSED, 0.15) else digest

    def copies(self, message: m.AnyMessage) -> tuple[float, ...]:
        if not isinstance(message, REPEATABLE):
            return ()
        late = self._streams["replay delay"].uniform(0.1, 8.0)
        doubled = (0.0,) if self.happens(Fault.DOUBLED, 0.25) else ()
        return (*doubled, late) if self.happens(Fault.REPLAYED, 0.1) else doubled

    def _is_cursed(self, kind: Fault, request: Request, share: float) -> bool:
        """By identity: also when the storm is over, and in the undisturbed run."""
        if not self._rates[kind] or int(mark(kind, self._seed, request.id)[:4], 16) >= share * 0x10000:
            return False
        self.fired[kind] += 1
        return True


class Undisturbed(Storm):
    """The same run without faults, but for those that are a matter of identity."""

    def __init__(self, seed: int, tempo: Tempo) -> None:
        super().__init__(seed, tempo)
        self.is_over = True


class MachineFaults:
    """Strikes machines at times."""

    def __init__(self, storm: Storm, world: SimWorld) -> None:
        self._storm = storm
        self._world = world
        self._acts: dict[Fault, Callable[[random.Random], None]] = {
            Fault.WORKER_KILLED: self._kill_worker,
            Fault.NODE_KILLED: lambda chance: self._on_node(chance, world.kill),
            Fault.CONNECTION_LOST: lambda chance: self._on_node(chance, lambda name: world.kill(name, True)),
            Fault.ADVISED: lambda chance: self._on_spot(chance, lambda name: self._warn(name, NoticeKind.ADVISORY, 60)),
            Fault.NOTICED: lambda chance: self._on_spot(chance, lambda name: self._doom(name, chance, 1.0)),
            Fault.KILLED_EARLY: lambda chance: self._on_spot(chance, lambda name: self._doom(name, chance, 0.3)),
            Fault.SPARED: lambda chance: self._on_spot(chance, lambda name: self._warn(name, NoticeKind.IMMINENT, 5)),
            Fault.ALL_SPOT_KILLED: self._kill_all_spot,
            Fault.FLAPPING: self._flap,
            Fault.STRAGGLER: lambda chance: self._on_worker(chance, lambda name: world.slow(name, SLOWNESS)),
            Fault.SILENCE: lambda chance: self._on_worker(
                chance, lambda name: world.freeze(name, chance.uniform(1.0, 30.0))
            ),
            Fault.STALL: lambda chance: self._on_node(chance, lambda name: world.stall(name, chance.uniform(1, 25))),
            Fault.REWARD_KILLED: lambda chance: self._on_node(chance, world.kill_reward_process),
        }

    async def rage(self, kind: Fault) -> None:
        """One kind, at times of its own, until cancelled."""
        chance = self._storm.stream(f"when {kind}")
        while True:
            await asyncio.sleep(chance.expovariate(1 / MEAN_GAP_S))
            if self._storm.happens(kind, 1.0):
                self._acts[kind](chance)

    def _on_node(self, chance: random.Random, act: Callable[[str], None]) -> None:
        if names := self._world.names():
            act(chance.choice(names))

    def _on_spot(self, chance: random.Random, act: Callable[[str], None]) -> None:
        if names := self._world.names(SlotClass.SPOT):
            act(chance.choice(names))

    def _on_worker(self, chance: random.Random, act: Callable[[WorkerId], None]) -> None:
        if workers := self._world.worker_ids():
            act(chance.choice(workers))

    def _kill_worker(self, chance: random.Random) -> None:
        self._on_worker(chance, self._world.kill_worker)

    def _warn(self, name: str, kind: NoticeKind, seconds: float) -> None:
        self._world.warn(name, kind, seconds)

    def _doom(self, name: str, chance: random.Random, share: float) -> None:
        seconds = chance.uniform(0.5, 15.0)
        node = self._world.nodes[name]
        self._world.warn(name, NoticeKind.IMMINENT, seconds)

        def kill() -> None:
            if self._world.nodes.get(name) is node:
                self._world.kill(name)

        asyncio.get_running_loop().call_later(seconds * share, kill)

    def _kill_all_spot(self, chance: random.Random) -> None:
        """No spot capacity at all for a while, or only until the nodes are back."""
        world, away_s = self._world, chance.choice((0.0, 30.0))
        for name in world.names(SlotClass.SPOT):
            spec = world.nodes[name].spec
            if away_s:
                world.remove(name)
                asyncio.get_running_loop().call_later(away_s, world.add, spec)
            world.kill(name)

    def _flap(self, chance: random.Random) -> None:
        """Up and down a few times in a row."""
        delay = 0.0
        for _ in range(chance.randint(2, 5)):
            delay += chance.uniform(0.2, 4.0)
            asyncio.get_running_loop().call_later(delay, self._on_spot, chance, self._world.kill)


class StormyDisk:
    """The controller's disk: dies, tears and fills up at some records; one per life of the controller."""

    def __init__(self, storm: Storm, is_new: bool, unplug: Callable[[], None]) -> None:
        self._storm = storm
        self._unplug = unplug
        self._is_dead = False
        self._is_first = is_new
        """A run that dies before its first record has never been."""
        self.torn = b""
        """What a crash left of a record."""

    def disk(self) -> Disk:
        return Disk(write=self._write)

    def record_written(self, record: Record) -> None:
        """An observer: the process dies right after the record, before anything is done about it."""
        if self._storm.happens(Fault.CRASH_AFTER, 0.005):
            self._die()

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        if self._is_first:
            self._is_first = False
            return os.write(handle, data)
        if self._is_dead or self._storm.happens(Fault.CRASH_BEFORE, 0.005):
            self._die()
        if self._storm.happens(Fault.TORN, 0.005):
            self.torn = bytes(data[: 1 + len(data) // 2])
            self._die()
        if self._storm.happens(Fault.JOURNAL_FULL, 0.003):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data)

    def _die(self) -> NoReturn:
        """At once: whatever is still on its way finds nobody."""
        self._is_dead = True
        self._unplug()
        raise PowerCut


def spoil(storm: Storm, storage: SimStorage, chance: random.Random) -> list[str]:
    """What a crash may do to files; returns their names."""
    spoilt = []
    for kind, act in ((Fault.PAYLOAD_LOST, storage.lose), (Fault.PAYLOAD_DAMAGED, storage.damage)):
        names = [name for name in storage.payloads() if name not in spoilt]
        if names and storm.happens(kind, 1.0):
            spoilt.append(chance.choice(names))
            act(spoilt[-1])
    return spoilt
