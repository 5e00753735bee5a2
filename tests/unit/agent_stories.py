"""A node driven by hand: `AgentCore` with a clock that tests advance, and effects that are recorded."""

from collections.abc import Callable
from typing import Any

from blob_stories import MemoryStore

from spotlight.compute.rewards.combination import Verdict
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import RewardError
from spotlight.core.events import SCHEMA
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.node.agent_core import AgentCore
from spotlight.node.agent_effects import Scoring
from spotlight.node.node_settings import NodeSettings
from spotlight.node.unloading import FlightStore, NearStore

NODE = NodeId("spot-1.1")
FIRST, SECOND, NEXT = (WorkerId(f"spot-1.1/{name}") for name in ("0.1", "1.1", "0.2"))
PROMPT = Prompt(text="hello")
WEIGHTS = WeightsId(Version(1))
GOOD = Verdict(m.Score(reward=1.0))
BROKEN = b"broken"
"""A blob that cannot be opened."""


class Timer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Timers:
    """A clock that `advance` moves."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[Timer] = []

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        self._due.append(Timer(when, callback))
        return self._due[-1]

    def call_soon(self, callback: Callable[[], object]) -> Timer:
        return self.call_at(self._now, callback)

    def advance(self, seconds: float) -> None:
        end = self._now + seconds
        while due := [timer for timer in self._due if timer.at <= end and not timer.is_cancelled]:
            timer = min(due, key=lambda each: each.at)
            self._due.remove(timer)
            self._now = max(self._now, timer.at)
            timer.callback()
        self._now = end


class Rendezvous:
    def open(self, token: GroupToken) -> None: ...

    def close(self, token: GroupToken) -> None: ...


class Node:
    """Records effects; workers are born when they are started, unless `is_slow`."""

    def __init__(
        self,
        slots: int = 1,
        is_slow: bool = False,
        boot_s: float = 0.0,
        begins: bool = True,
        far: FlightStore | None = None,
        **settings: Any,
    ) -> None:
        spec = NodeSpec(name="spot-1", slot_class=SlotClass.SPOT, slots=slots, boot_s=boot_s)
        usual = {"elastic": ElasticConfig(), "heads": 1, "token_pixels": 64, "drain_s": 20.0}
        self.timers = Timers()
        self._is_slow = is_slow
        self.sent: list[tuple[WorkerId | None, m.AnyMessage]] = []
        """Messages to the controller."""
        self.inbox: dict[WorkerId, list[m.AnyMessage]] = {}
        """Messages to each worker that was born."""
        self.blobs: dict[WorkerId, list[bytes]] = {}
        self.started: list[WorkerId] = []
        self.killed: list[WorkerId] = []
        self.scoring: list[tuple[Scoring, m.Granted]] = []
        self.copying: list[m.Load] = []
        self.deleted: list[str] = []
        self.spoiled: list[str] = []
        self.ends: list[str] = []
        self.times_all_started = 0
        self.relaying: set[WorkerId] = set()
        self.store = MemoryStore()
        made = NodeSettings(node=NODE, spec=spec, **usual | settings)
        self.core = AgentCore(made, self, Rendezvous(), NearStore(self.store) if far is None else far, self.timers)
        if begins:
            self.core.begin()

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.timers.advance(seconds)

    def born(self, worker: WorkerId) -> None:
        inbox, blobs = self.inbox[worker], self.blobs[worker] = [], []

        def send(message: m.AnyMessage, blob: bytes) -> None:
            inbox.append(message)
            blobs.append(blob)

        self.core.born(worker, send)

    def hello(self, *workers: WorkerId) -> None:
        for worker in workers:
            hello = m.Hello(schema=SCHEMA, code="", node=NODE, slot_class=SlotClass.SPOT, rows=1, pid=1)
            self.core.from_worker(worker, hello)

    def grant(self, worker: WorkerId, *leases: m.Granted) -> None:
        self.core.from_controller(worker, m.Grant(leases=leases), b"")

    def finish(self, worker: WorkerId, lease: m.Granted, blob: bytes = b"tensors") -> None:
        self.core.from_worker(worker, result(lease), blob)

    def load(self, version: int, *keep: int, worker: WorkerId | None = None) -> m.Load:
        kept = tuple(WeightsId(Version(number)) for number in keep)
        load = m.Load(weights=WeightsId(Version(version)), digest=f"d{version}", path=f"run/{version}", keep=kept)
        self.core.from_controller(worker, load, b"")
        return load

    def reported(self, kind: type[m.AnyMessage]) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]

    # -- effects -------------------------------------------------------------------------------------------------------

    def report(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        self.sent.append((worker, message))

    def start_worker(self, slot: int, worker: WorkerId) -> None:
        self.started.append(worker)
        if not self._is_slow:
            self.born(worker)

    def kill_worker(self, worker: WorkerId) -> None:
        self.killed.append(worker)

    def is_relaying(self, worker: WorkerId) -> bool:
        return worker in self.relaying

    def open(self, blob: bytes) -> tuple[str, bytes]:
        if blob == BROKEN:
            raise RewardError("the picture is broken.")
        return "picture", blob

    def score(self, scoring: Scoring, granted: m.Granted, picture: str) -> None:
        assert picture == "picture"
        self.scoring.append((scoring, granted))

    def copy(self, load: m.Load) -> None:
        self.copying.append(load)

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def spoil(self, path: str) -> None:
        self.spoiled.append(path)

    def all_started(self) -> None:
        self.times_all_started += 1

    def end(self, why: str) -> None:
        self.ends.append(why)


def lease(seed: int, work: Work = Work.ROLLOUT, attempt: int = 1) -> m.Granted:
    sample = Sample(prompt=PROMPT.id, seed=seed, sampling=Sampling(steps=10, size=Size(32, 96)), version=Version(1))
    return m.Granted(request=Request(work=work, iteration=0, group=0, sample=sample), attempt=attempt, prompt=PROMPT)


def result(lease: m.Granted, **fields: Any) -> m.Result:
    return m.Result(request=lease.request.id, attempt=lease.attempt, digest="d1", steps=10, **fields)
