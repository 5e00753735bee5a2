"""Stand-ins for spot nodes over a recording pool, in virtual time, driven by records."""

import asyncio
from itertools import count

import pytest

from spotlight.control.market.allowance import Allowance
from spotlight.core.events import IterationDone, NodeLost, Record, WorkerJoined, WorkerLost
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.pools.config import ClusterConfig, MarketConfig
from spotlight.pools.market import Purse, StandIns
from spotlight.sim.virtual_loop import run_virtually

DRAIN_S = 5.0


class RecordingPool:
    """A pool without machines: records which nodes are up, and its operations with their times."""

    def __init__(self) -> None:
        self.up: dict[str, NodeId] = {}
        self.specs: dict[str, NodeSpec] = {}
        self.done: list[tuple[float, str, NodeId]] = []

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self.up[name] for name in sorted(self.up))

    def current(self, name: str) -> NodeId | None:
        return self.up.get(name)

    async def add_node(self, spec: NodeSpec) -> NodeId:
        lives = sum(what == "rented" and node.startswith(f"{spec.name}.") for _, what, node in self.done)
        node = self.up[spec.name] = spec.incarnation(lives + 1)
        self.specs[spec.name] = spec
        self._note("rented", node)
        return node

    async def drain_node(self, node: NodeId) -> None:
        self._note("asked to go", node)
        await asyncio.sleep(DRAIN_S)
        self._note("gone", self.up.pop(node.rpartition(".")[0]))

    def restart(self, name: str) -> None:
        """Crash the agent of this node; the next incarnation is up already."""
        self.up[name] = NodeId(f"{name}.2")

    def _note(self, what: str, node: NodeId) -> None:
        self.done.append((asyncio.get_running_loop().time(), what, node))


class SpotRecords:
    """Emits records of spot nodes that come and go."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._stand_ins = stand_ins
        self._seq = count()

    def comes(self, *nodes: str, slots: int = 1, slot_class: SlotClass = SlotClass.SPOT) -> None:
        for node in nodes:
            for slot in range(slots):
                worker = WorkerId(f"{node}/{slot}.1")
                self._emit(WorkerJoined(worker=worker, node=NodeId(node), slot_class=slot_class, rows=4))

    def loses(self, worker: str) -> None:
        self._emit(WorkerLost(worker=WorkerId(worker), cause="killed"))

    def goes(self, *nodes: str) -> None:
        for node in nodes:
            self._emit(NodeLost(node=NodeId(node), cause="killed"))

    def iterates(self, iteration: int) -> None:
        self._emit(IterationDone(iteration=iteration, rollout_s=0.0, train_s=0.0, reward=0.0))

    def _emit(self, event: IterationDone | WorkerJoined | WorkerLost | NodeLost) -> None:
        self._stand_ins.observe(Record(next(self._seq), asyncio.get_running_loop().time(), event))


def run_scenario(
    scenario, spot: int = 2, haste: float = 1.0, purse: Purse | None = None, **market: float | str
) -> RecordingPool:
    """Run the scenario for a run with `spot` spot nodes; return the pool."""
    pool = RecordingPool()

    async def run() -> None:
        stand_ins = StandIns.of(ClusterConfig(spot=spot), MarketConfig(**market), pool, haste, purse)
        keeping = asyncio.create_task(stand_ins.keep())
        await scenario(SpotRecords(stand_ins), pool)
        keeping.cancel()

    run_virtually(run())
    return pool


def test_stand_ins_come_after_the_bound_and_go_when_spot_works_again():
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        spot.comes("spot-1.1", "spot-2.1")
        await asyncio.sleep(100)
        spot.goes("spot-1.1", "spot-2.1")
        await asyncio.sleep(700)
        spot.comes("spot-1.2")
        await asyncio.sleep(100)
        spot.comes("spot-2.2")
        await asyncio.sleep(100)

    pool = run_scenario(scenario, fallback_s=600)
    assert pool.done == [
        (700, "rented", "stand-in-1.1"),
        (700, "rented", "stand-in-2.1"),
        (800, "asked to go", "stand-in-2.1"),
        (805, "gone", "stand-in-2.1"),
        (900, "asked to go", "stand-in-1.1"),
        (905, "gone", "stand-in-1.1"),
    ]


def test_stand_in_is_a_reserved_node_that_does_not_train_and_is_billed_on_demand():
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        await asyncio.sleep(60)

    pool = run_scenario(scenario, spot=1, fallback_s=60, boot_s=40, haste=2)
    spec = pool.specs["stand-in-1"]
    assert (spec.slot_class, spec.trains, spec.price) == (SlotClass.RESERVED, False, MarketConfig().reserved_price)
    assert spec.boot_s == 20
    assert pool.done == [(30, "rented", "stand-in-1.1")]


@pytest.mark.parametrize("bound", [None, 600])
def test_no_stand_in_is_rented_without_a_bound_or_before_it(bound):
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        await asyncio.sleep(599)
        spot.comes("spot-1.1", "spot-2.1")
        await asyncio.sleep(10_000)

    assert run_scenario(scenario, fallback_s=bound).done == []


def test_node_counts_as_missing_while_none_of_its_workers_is_up():
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        spot.comes("reserved-1.1", slot_class=SlotClass.RESERVED)
        spot.comes("spot-1.1", slots=2)
        spot.loses("spot-1.1/0.1")
        await asyncio.sleep(50)
        assert pool.done == []
        spot.loses("spot-1.1/1.1")
        await asyncio.sleep(50)

    assert run_scenario(scenario, spot=1, fallback_s=10).done == [(60, "rented", "stand-in-1.1")]


def test_stand_in_that_was_restarted_is_given_back_by_its_newest_incarnation():
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        await asyncio.sleep(20)
        pool.restart("stand-in-1")
        spot.comes("spot-1.1")
        await asyncio.sleep(20)

    pool = run_scenario(scenario, spot=1, fallback_s=10)
    assert pool.nodes() == ()
    assert pool.done[-1] == (25, "gone", "stand-in-1.2")


def test_spot_that_is_lost_while_its_stand_in_leaves_gets_a_new_bound():
    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        await asyncio.sleep(20)
        spot.comes("spot-1.1")
        await asyncio.sleep(2)
        spot.goes("spot-1.1")
        await asyncio.sleep(100)

    pool = run_scenario(scenario, spot=1, fallback_s=10)
    # Gone at 25; the shortage is seen then, and its bound passes at 35.
    assert pool.done[-1] == (35, "rented", "stand-in-1.2")


def test_iteration_in_which_a_stand_in_came_and_went_does_not_count_for_the_pace_without_them():
    allowance = Allowance(iterations=100, max_s=1.0, max_dollars=None, dollars_per_s=1.0)

    async def scenario(spot: SpotRecords, pool: RecordingPool) -> None:
        for iteration, seconds in enumerate((50, 100)):
            await asyncio.sleep(seconds)
            spot.iterates(iteration)
        await asyncio.sleep(200)
        spot.comes("spot-1.1", "spot-2.1")
        await asyncio.sleep(DRAIN_S + 1)
        spot.iterates(2)
        assert (pool.nodes(), allowance.pace_s) == ((), 100)
        await asyncio.sleep(200)
        spot.iterates(3)

    pool = run_scenario(scenario, purse=Purse(allowance, lambda: 0.0), fallback_s="auto")
    assert [what for _, what, _ in pool.done] == ["rented", "rented", "asked to go", "asked to go", "gone", "gone"]
    assert allowance.pace_s == pytest.approx(0.7 * 100 + 0.3 * 200)
