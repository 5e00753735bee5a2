"""Random faults: the seed draws the kinds of a storm and their rates, then the time and place of each fault.

Every kind draws from its own stream, so a new kind does not change the others. Faults come in one to three gusts, most
of which begin at the end of an iteration or of a checkpoint: faults without a pause leave a run hardly a trained step.
After the last gust the run must finish. Faults by identity (a sample that always fails, a sample without a reward) do
not stop: an undisturbed run of the seed has the same ones.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from spotlight.compute.profiling.pace import Pace
from spotlight.controller.gang import DEATHS_ALLOWED
from spotlight.core import messages as m
from spotlight.core.events import AnyEvent, Checkpointed, IterationDone
from spotlight.core.link import GRACE_S
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, RequestId, SlotClass
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fakes import Streams, mark
from spotlight.sim.fault_policy import NoFaults, Tempo
from spotlight.sim.sim_world import SimWorld


class Fault(StrEnum):
    """Kinds of faults; every `CrashPoint` is a kind too. Values name random streams: a new one changes its draws."""

    WORKER_KILLED = "worker killed"
    NODE_KILLED = "node killed"
    CONNECTION_LOST = "connection lost with words on their way"
    ADVISED = "advisory notice"
    NOTICED = "imminent notice, then killed"
    KILLED_EARLY = "killed earlier than promised"
    SPARED = "imminent notice, then not killed"
    WITHDRAWN = "notice, then withdrawn"
    ALL_SPOT_KILLED = "all spot killed at once"
    FLAPPING = "capacity flapping"
    STRAGGLER = "straggler"
    SILENCE = "silence, then a zombie"
    STALL = "connection stalled"
    CUT = "connection cut, then resumed"
    HALF_OPEN = "connection half open, then resumed"
    PARTED = "connection cut for longer than the grace"
    REWARD_KILLED = "reward process killed"
    REWARD_DOWN = "reward unavailable for a while"
    STORE_SLOW = "store slow to answer"
    DOUBLED = "message doubled"
    REPLAYED = "message replayed late"
    LATE_RESULT = "result of an attempt that had ended"
    ATTEMPT_FAILED = "attempt failed"
    POISON = "sample that always fails"
    UNSCORABLE = "no reward"
    MISREAD = "weights misread"
    COPY_DAMAGED = "weights damaged on a node"
    MISUSED = "sample of wrong weights"
    CRASH_BEFORE = "controller died before a record"
    CRASH_AFTER = "controller died after a record"
    TORN = "journal tail torn"
    JOURNAL_FULL = "disk full at a record"
    PAYLOAD_FULL = "disk full at a payload"
    PAYLOAD_LOST = "payload lost"
    PAYLOAD_DAMAGED = "payload damaged"
    FLIGHTS_LOST = "flights lost"
    FLIGHTS_DAMAGED = "flights damaged"
    FLIGHTS_CUT = "flights cut short"


KINDS = (*Fault, *CrashPoint)
MACHINES = (
    Fault.WORKER_KILLED, Fault.NODE_KILLED, Fault.CONNECTION_LOST, Fault.ADVISED, Fault.NOTICED,
    Fault.KILLED_EARLY, Fault.SPARED, Fault.WITHDRAWN, Fault.ALL_SPOT_KILLED, Fault.FLAPPING, Fault.STRAGGLER,
    Fault.SILENCE, Fault.STALL, Fault.CUT, Fault.HALF_OPEN, Fault.PARTED, Fault.REWARD_KILLED, Fault.REWARD_DOWN,
)  # fmt: skip
"""Faults at random times; the others happen at an occasion, such as a message."""
KIND_SHARES: Mapping[Fault | CrashPoint, float] = {Fault.LATE_RESULT: 0.9}
"""Share of storms that contain a kind, where it differs from 0.4: few samples are handed back."""
MEAN_GAP_S = 8.0
"""Mean time between two occasions for a fault of one kind."""
SLOWNESS = 20.0
SHARES = {
    CrashPoint.AT_BOUNDARY: 0.04,
    CrashPoint.BEFORE_RESULT: 0.04,
    CrashPoint.IN_FORWARD: 0.2,
    CrashPoint.SAVING: 0.8,
    CrashPoint.SAVED: 0.8,
}
"""Share of occasions with a fault, where it differs from the default: rollouts have many occasions, checkpoints few."""
OCCASIONS = (IterationDone, Checkpointed)
"""Records at which gusts begin: at the first a checkpoint may be under way, at the second it can be restored."""
MAX_FAILURES = 2
"""Random failures per sample: one less than the number at which the dispatcher drops it."""
POISONED = 0.03
"""Share of samples that every attempt fails at."""
UNSCORABLE = 0.08
"""Share of samples at whose pictures the reward raises."""
WINDOWS = (
    (
        *(CrashPoint.ACCUMULATING, CrashPoint.ACCUMULATED, CrashPoint.EXCHANGED, CrashPoint.STEPPED),
        CrashPoint.REPLY_SENT,
    ),
    (CrashPoint.FORMED,),
    (CrashPoint.PUBLISHING, CrashPoint.PUBLISHED),
    (CrashPoint.SAVING, CrashPoint.SAVED),
    (CrashPoint.RESTORING,),
)
"""Crash points of each kind of order to the gang."""
MAX_DEATHS = DEATHS_ALLOWED - 4
"""Random deaths per kind of order: together with a few of other causes, fewer than make the gang give up."""
MAY_REPEAT = (m.Pull, m.Commit, m.HandBack, m.Result, m.Held, m.Failed, m.Gone)
"""Messages that a worker may send twice when it retries; greetings and replies of the training worker are sent once."""


@dataclass(frozen=True)
class Gust:
    """A time with faults."""

    after: type[AnyEvent] | None
    """Record at which it begins; None: at once."""
    seconds: float


class Storm(NoFaults):
    """Random faults, except while `is_calm`."""

    def __init__(self, seed: int, tempo: Tempo) -> None:
        super().__init__(tempo)
        self._streams = Streams(seed)
        self._rates = {kind: self._rate(self._streams[f"mix {kind}"], KIND_SHARES.get(kind, 0.4)) for kind in KINDS}
        self.gusts = self._draw_gusts()
        self._seed = seed
        self._failures: Counter[str] = Counter()
        self.is_calm = self.gusts[0].after is not None
        self.fired: Counter[str] = Counter()

    @staticmethod
    def _rate(mix: random.Random, share: float) -> float:
        """Most kinds are absent from most storms, so that each also occurs among few others."""
        return mix.uniform(0.2, 1.0) if mix.random() < share else 0.0

    def _draw_gusts(self) -> tuple[Gust, ...]:
        chance = self._streams["gusts"]
        count = chance.choice((1, 2, 3))
        seconds = self._streams["safety"].uniform(40.0, 160.0) / count
        first = chance.choice((None, IterationDone, Checkpointed))
        return tuple(Gust(chance.choice(OCCASIONS) if number else first, seconds) for number in range(count))

    def stream(self, name: str) -> random.Random:
        return self._streams[name]

    def happens(self, kind: Fault | CrashPoint, scale: float) -> bool:
        """Whether a fault happens at this occasion; counts it if so."""
        rate = self._rates[kind]
        if self.is_calm or not rate or self._streams[kind].random() >= rate * scale:
            return False
        self.fired[kind] += 1
        return True

    # -- called by machines --------------------------------------------------------------------------------------------

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        pace = super().pace(worker, slot_class)
        pace.step_s *= 0.5 + int(mark("pace", self._seed, worker)[:4], 16) / 0x8000
        pace.adopt_s = pace.load_s * int(mark("adopt", self._seed, worker)[:4], 16) / 0x10000
        pace.copy_s = pace.load_s * int(mark("copy", self._seed, worker)[:4], 16) / 0x10000
        # Up to eight updates: they continue during the write, and it may still run when the next save is due.
        pace.save_s = pace.load_s + pace.train_s * int(mark("save", self._seed, worker)[:4], 16) / 0x2000
        return pace

    def latency_s(self, node: NodeId) -> float:
        return self.tempo.latency_s * self._streams["latency"].uniform(0.2, 2.0)

    def is_far(self, node: NodeId) -> bool:
        return bool(self._rates[Fault.STORE_SLOW])

    def store_s(self, node: NodeId) -> float:
        trip_s = super().store_s(node) * self._streams["store"].uniform(0.2, 2.0)
        return trip_s + self._streams["slow store"].uniform(0.1, 8.0) if self.happens(Fault.STORE_SLOW, 0.1) else trip_s

    def fetch_s(self, node: NodeId) -> float:
        return self.tempo.load_s * self._streams["fetch"].uniform(0.0, 4.0)

    def score_s(self, request: Request, node: NodeId) -> float:
        return self.tempo.score_s * self._streams["score"].uniform(0.5, 1.5)

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        deaths = sum(self.fired[each] for order in WINDOWS if point in order for each in order)
        return deaths < MAX_DEATHS and self.happens(point, SHARES.get(point, 0.4))

    def fails(self, request: Request, attempt: int) -> bool:
        if self._is_by_identity(Fault.POISON, request, POISONED):
            return True
        if self._failures[request.id] < MAX_FAILURES and self.happens(Fault.ATTEMPT_FAILED, 0.05):
            self._failures[request.id] += 1
            return True
        return False

    def is_poisoned(self, request: RequestId) -> bool:
        """Whether every attempt at this sample fails, by its identity."""
        return self._has(Fault.POISON, request, POISONED)

    def is_unscorable(self, request: Request) -> bool:
        return self._is_by_identity(Fault.UNSCORABLE, request, UNSCORABLE)

    def has_no_reward(self, request: RequestId) -> bool:
        """Whether the reward raises at every picture of this sample, by its identity."""
        return self._has(Fault.UNSCORABLE, request, UNSCORABLE)

    def late_result_delay(self, worker: WorkerId) -> float | None:
        delay_s = self._streams["haunting"].uniform(0.0, 4.0)
        return delay_s if self.happens(Fault.LATE_RESULT, 1.0) else None

    def is_full(self, path: str) -> bool:
        """Whether this file cannot be written; commits are many, and each stops the run."""
        return self.happens(Fault.PAYLOAD_FULL, 0.002 if path.startswith("flights/") else 0.06)

    def copied(self, digest: str, node: NodeId) -> str:
        return mark("copied", digest) if self.happens(Fault.COPY_DAMAGED, 0.3) else digest

    def misread(self, digest: str, worker: WorkerId) -> str:
        return mark("misread", digest) if self.happens(Fault.MISREAD, 0.2) else digest

    def misused(self, digest: str, worker: WorkerId) -> str:
        return mark("misused", digest) if self.happens(Fault.MISUSED, 0.15) else digest

    def copies(self, message: m.AnyMessage) -> tuple[float, ...]:
        if not isinstance(message, MAY_REPEAT):
            return ()
        late = self._streams["replay delay"].uniform(0.1, 8.0)
        doubled = (0.0,) if self.happens(Fault.DOUBLED, 0.25) else ()
        return (*doubled, late) if self.happens(Fault.REPLAYED, 0.1) else doubled

    def _is_by_identity(self, kind: Fault, request: Request, share: float) -> bool:
        """Whether the sample's identity has this fault; also after the storm and in the undisturbed run."""
        if not self._has(kind, request.id, share):
            return False
        self.fired[kind] += 1
        return True

    def _has(self, kind: Fault, request: RequestId, share: float) -> bool:
        return bool(self._rates[kind]) and int(mark(kind, self._seed, request)[:4], 16) < share * 0x10000


class Undisturbed(Storm):
    """The seed's run without faults, except those by identity."""

    def __init__(self, seed: int, tempo: Tempo) -> None:
        super().__init__(seed, tempo)
        self.gusts = ()
        self.is_calm = True


class MachineFaults:
    """Injects machine faults at random times."""

    def __init__(self, storm: Storm, world: SimWorld) -> None:
        self._storm = storm
        self._world = world
        self._actions: dict[Fault, Callable[[random.Random], None]] = {
            Fault.WORKER_KILLED: self._kill_worker,
            Fault.NODE_KILLED: lambda chance: self._on_node(chance, world.kill),
            Fault.CONNECTION_LOST: lambda chance: self._on_node(chance, lambda name: world.kill(name, True)),
            Fault.ADVISED: lambda chance: self._on_spot(
                chance, lambda name: world.warn(name, NoticeKind.ADVISORY, 60, "adviser")
            ),
            Fault.NOTICED: lambda chance: self._on_spot(chance, lambda name: self._warn_and_kill(name, chance, 1.0)),
            Fault.KILLED_EARLY: lambda chance: self._on_spot(
                chance, lambda name: self._warn_and_kill(name, chance, 0.3)
            ),
            Fault.SPARED: lambda chance: self._on_spot(
                chance, lambda name: world.warn(name, NoticeKind.IMMINENT, 5, "sparer")
            ),
            Fault.WITHDRAWN: lambda chance: self._on_spot(chance, lambda name: self._warn_and_withdraw(name, chance)),
            Fault.ALL_SPOT_KILLED: self._kill_all_spot,
            Fault.FLAPPING: self._flap,
            Fault.STRAGGLER: lambda chance: self._on_worker(chance, lambda name: world.slow(name, SLOWNESS)),
            Fault.SILENCE: lambda chance: self._on_worker(
                chance, lambda name: world.freeze(name, chance.uniform(1.0, 30.0))
            ),
            Fault.STALL: lambda chance: self._on_node(chance, lambda name: world.stall(name, chance.uniform(1, 25))),
            Fault.CUT: lambda chance: self._on_node(chance, lambda name: world.cut(name, chance.uniform(0.05, 15))),
            Fault.HALF_OPEN: lambda chance: self._on_node(
                chance, lambda name: world.half_open(name, chance.uniform(5, 20))
            ),
            Fault.PARTED: lambda chance: self._on_node(chance, lambda name: world.cut(name, 2 * GRACE_S)),
            Fault.REWARD_KILLED: lambda chance: self._on_node(chance, world.kill_reward_process),
            Fault.REWARD_DOWN: lambda chance: world.lose_reward(
                chance.choice(world.rewards).key, chance.uniform(0.5, 15.0)
            ),
        }

    async def inject(self, kind: Fault) -> None:
        """Inject faults of one kind until cancelled."""
        chance = self._storm.stream(f"when {kind}")
        while True:
            await asyncio.sleep(chance.expovariate(1 / MEAN_GAP_S))
            if self._storm.happens(kind, 1.0):
                self._actions[kind](chance)

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

    def _warn_and_kill(self, name: str, chance: random.Random, share: float) -> None:
        seconds = chance.uniform(0.5, 15.0)
        node = self._world.nodes[name]
        self._world.warn(name, NoticeKind.IMMINENT, seconds)

        def kill() -> None:
            if self._world.nodes.get(name) is node:
                self._world.kill(name)

        asyncio.get_running_loop().call_later(seconds * share, kill)

    def _warn_and_withdraw(self, name: str, chance: random.Random) -> None:
        """Give a notice, and withdraw it before its deadline or some time after."""
        kind, seconds = chance.choice(tuple(NoticeKind)), chance.uniform(0.5, 15.0)
        node = self._world.nodes[name]
        self._world.warn(name, kind, seconds, "withdrawer")

        def withdraw() -> None:
            if self._world.nodes.get(name) is node:
                self._world.withdraw(name, kind, "withdrawer")

        asyncio.get_running_loop().call_later(seconds * chance.uniform(0.1, 2.0), withdraw)

    def _kill_all_spot(self, chance: random.Random) -> None:
        """Take all spot nodes, for 30 s or only until they restart."""
        world, away_s = self._world, chance.choice((0.0, 30.0))
        for name in world.names(SlotClass.SPOT):
            spec = world.nodes[name].spec
            if away_s:
                world.remove(name)
                asyncio.get_running_loop().call_later(away_s, world.add, spec)
            world.kill(name)

    def _flap(self, chance: random.Random) -> None:
        """Kill spot nodes 2 to 5 times in a row."""
        delay = 0.0
        for _ in range(chance.randint(2, 5)):
            delay += chance.uniform(0.2, 4.0)
            asyncio.get_running_loop().call_later(delay, self._on_spot, chance, self._world.kill)
