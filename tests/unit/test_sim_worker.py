"""A simulated worker that runs ahead: its messages on the way, and how it applies orders."""

import asyncio
import weakref
from collections.abc import Callable

import msgspec
import pytest

from spotlight.compute.profiling.pace import Pace
from spotlight.core import messages as m
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.numerics import HashNumerics
from spotlight.sim.rendezvous import SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_trainer import SimTrainer
from spotlight.sim.sim_worker import SimWorker
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import run_virtually

STEP_S = 30.0
PROMPT = Prompt(text="a river at dawn")
SAMPLE = Sample(prompt=PROMPT.id, seed=1, sampling=Sampling(steps=40, size=Size(32, 96)), version=Version(0))
REQUEST = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=SAMPLE)
WEIGHTS = WeightsId(Version(0))


class Node:
    """Records the messages of one worker with their times."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, m.AnyMessage]] = []

    def send_from(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))

    def finished(self, worker: SimWorker, row: SimRow, digest: str, blob: bytes) -> None:
        result = m.Result(
            request=row.request.id, attempt=row.granted.attempt, digest=digest, steps=row.step - row.began
        )
        self.send_from(worker.id, result, blob)

    def stored(self, load: m.Load) -> str:
        return load.digest

    def memory_of(self, holder: WorkerId, weights: WeightsId) -> str | None:
        return None

    def read_back(self, digest: str, worker: WorkerId) -> str:
        return digest

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        return False

    def fails(self, request: Request, attempt: int) -> bool:
        return False

    def late_result_delay(self, worker: WorkerId) -> float | None:
        return None

    def digest_used(self, digest: str, worker: WorkerId) -> str:
        return digest

    def received(self, kind: type) -> list[tuple[float, m.AnyMessage]]:
        return [(when, message) for when, message in self.sent if isinstance(message, kind)]


def worker_on(node: Node, heartbeat_s: float, trainer: SimTrainer | None = None) -> SimWorker:
    return SimWorker(
        id=WorkerId("spot-1.1/0.1"),
        node=NodeId("spot-1.1"),
        slot_class=SlotClass.SPOT,
        rows=1,
        pace=Pace(STEP_S, 0.0, 0.0, 0.0, heartbeat_s, runs_ahead=True),
        around=node,
        trainer=trainer,
        numerics=HashNumerics(),
        latent_salt="",
        rendezvous=SimRendezvous(),
        machines=SimMachineSettings(copies_sets=False),
    )


def messages_after(orders: Callable[[SimWorker], None], seconds: float, heartbeat_s: float = 1000.0) -> Node:
    """Run a worker that is given one sample at 0 s, and `orders` after 100 s; return the node with its messages."""

    async def main() -> Node:
        node = Node()
        worker = worker_on(node, heartbeat_s)
        life = asyncio.create_task(worker.live())
        worker.receive(m.Load(weights=WEIGHTS, digest="base", path=""), b"")
        grant = m.Grant(leases=(m.Granted(request=REQUEST, attempt=1, prompt=PROMPT),))
        worker.receive(grant, msgspec.msgpack.encode({}))
        asyncio.get_running_loop().call_later(100.0, orders, worker)
        await asyncio.sleep(seconds)
        life.cancel()
        return node

    return run_virtually(main())


def test_worker_that_runs_ahead_reports_its_current_step_and_not_its_first():
    node = messages_after(lambda worker: None, 1000.0, heartbeat_s=95.0)
    reported = [(when, message.progress[0].step) for when, message in node.received(m.Alive)]
    assert reported[:3] == [(95.0, 3), (190.0, 6), (285.0, 9)]


def test_worker_that_runs_ahead_finishes_when_all_steps_are_done():
    ((when, result),) = messages_after(lambda worker: None, 2000.0).received(m.Result)
    assert when == pytest.approx(40 * STEP_S)
    assert result.steps == 40


def test_recalled_worker_that_runs_ahead_hands_back_at_the_next_boundary():
    node = messages_after(lambda worker: worker.receive(m.Recall(requests=(REQUEST.id,)), b""), 2000.0)
    ((when, back),) = node.received(m.HandBack)
    assert when == pytest.approx(4 * STEP_S)
    assert back.step == 4
    assert not node.received(m.Result)


def test_worker_that_dies_at_the_instant_of_a_heartbeat_sends_no_more():
    async def main() -> tuple[Node, bool]:
        node, loop = Node(), asyncio.get_running_loop()
        lives = [asyncio.create_task((worker := worker_on(node, 95.0)).live())]
        freed = weakref.ref(worker)
        del worker
        # A callback of the same instant, as a fault or the loss of a connection is.
        loop.call_at(190.0, lambda: lives.pop().cancel())
        await asyncio.sleep(1000.0)
        return node, freed() is None

    node, is_freed = run_virtually(main())
    assert is_freed
    assert [when for when, _ in node.received(m.Alive)][:1] == [95.0]
    assert len(node.received(m.Alive)) <= 2


SAVE = m.Save(step=0, path="checkpoints/step_0")


def saved_by(orders: list[m.AnyMessage], seconds: float) -> tuple[Node, SimStorage]:
    """Run a trainer whose checkpoints hold it for 1 s and are on disk after 10; it is killed after `seconds`."""

    async def main() -> tuple[Node, SimStorage]:
        node, storage = Node(), SimStorage()
        worker = worker_on(node, 1000.0, SimTrainer(storage, "", HashNumerics()))
        worker.pace = Pace(STEP_S, 0.0, 1.0, 0.0, 1000.0, save_s=10.0)
        life = asyncio.create_task(worker.live())
        for order in orders:
            worker.receive(order, b"")
        await asyncio.sleep(seconds)
        life.cancel()
        await asyncio.sleep(1000.0)
        return node, storage

    return run_virtually(main())


def test_trainer_is_held_for_the_snapshot_and_applies_orders_while_its_checkpoint_is_written():
    node, storage = saved_by([SAVE, m.Publish(weights=(WEIGHTS,))], 100.0)
    assert [when for when, _ in node.received(m.PublishedWeights)] == [2.0]
    assert node.received(m.Saved) == [(10.0, m.Saved(step=0, path=SAVE.path))]
    assert list(storage.checkpoints) == [SAVE.path]


def test_checkpoint_of_a_trainer_that_is_killed_is_never_finished():
    node, storage = saved_by([SAVE, m.Publish(weights=(WEIGHTS,))], 9.0)
    assert node.received(m.PublishedWeights)
    assert not node.received(m.Saved)
    assert list(storage.checkpoints) == [f"{SAVE.path}.1.part"]


def test_trainer_that_is_restored_or_saves_again_first_reports_the_checkpoint_under_way():
    node, _ = saved_by([SAVE, m.Save(step=0, path="checkpoints/again"), m.Restore(step=0, path=SAVE.path)], 100.0)
    reported = [(when, message.path, message.restored) for when, message in node.received(m.Saved)]
    assert reported == [(10.0, SAVE.path, False), (20.0, "checkpoints/again", False), (21.0, SAVE.path, True)]
