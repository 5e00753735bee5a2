"""A gang of several ranks: it forms when all are there, trains together, and goes on after the loss of one."""

import asyncio

import pytest
from gang_stories import FIRST, NEIGHBOUR, THIRD, TIMEOUT_S, Node, run_scenario, stepped, train

from spotlight.controller.gang import GangLost
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId

REPLACEMENT = WorkerId("reserved-1.1/1.2")


def gone(worker: WorkerId) -> m.Gone:
    return m.Gone(worker=worker, cause="killed")


async def ordered(node: Node, step: int, ranks: int) -> tuple["asyncio.Task[m.Stepped]", list[m.AnyMessage]]:
    task = asyncio.create_task(node.gang.step(train(step)))
    return task, [await node.orders.get() for _ in range(ranks)]


def test_gang_forms_when_every_slot_has_a_worker_and_numbers_its_ranks_by_slot() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        node.join(NEIGHBOUR)
        present = asyncio.create_task(node.gang.present())
        await asyncio.sleep(1.0)
        assert node.orders.empty()
        assert "1 of 2 training ranks (reserved-1/0; see logs/reserved-1.*-0.*.log)" in node.hub.waiting_for()
        node.join(FIRST)
        await node.formed([FIRST, NEIGHBOUR])
        assert await present is False
        with pytest.raises(GangLost):
            await node.gang.step(train(0))

    run_scenario(scenario)


def test_step_ends_when_every_rank_has_taken_it() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        step, orders = await ordered(node, 0, 2)
        assert [(order.rank, order.ranks) for order in orders if isinstance(order, m.Train)] == [(0, 2), (1, 2)]
        node.receive(FIRST, stepped(0))
        await asyncio.sleep(1.0)
        assert not step.done()
        node.receive(NEIGHBOUR, stepped(0))
        assert (await step).digest == "theta-0"
        assert node.gang.is_restored()

    run_scenario(scenario)


def test_ranks_that_hold_other_weights_after_one_step_stop_the_run() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        step, _ = await ordered(node, 0, 2)
        node.receive(FIRST, stepped(0))
        node.receive(NEIGHBOUR, m.Stepped(step=0, digest="other", figures={}))
        with pytest.raises(Stopped, match=f"different weights after the same step .*{NEIGHBOUR}"):
            await step

    run_scenario(scenario)


def test_survivor_stays_and_gives_its_state_to_the_gang_that_forms_with_the_replacement() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        await node.restored_ranks([FIRST, NEIGHBOUR], 2, "checkpoints/2")
        step, _ = await ordered(node, 3, 2)
        node.receive(None, gone(NEIGHBOUR))
        await asyncio.sleep(1.0)
        assert not step.done(), "the survivor may have taken the step"
        node.receive(FIRST, m.GangBroken(epoch=node.gang.life, problem="rank 1 is gone"))
        with pytest.raises(GangLost, match="rank 1 is gone"):
            await step
        present = asyncio.create_task(node.gang.present())
        await asyncio.sleep(1.0)
        assert node.orders.empty()
        node.join(REPLACEMENT)
        await node.formed([FIRST, REPLACEMENT], [3, 0])
        assert await present is False
        assert (node.gang.holder(3), node.gang.holder(2)) == (0, None)
        restoring = asyncio.create_task(node.gang.restore(3, "", source=0))
        for worker in (FIRST, REPLACEMENT):
            assert await node.orders.get() == m.Restore(step=3, path="", source=0)
            node.receive(worker, m.Saved(step=3, path="", restored=True))
        await restoring
        assert node.killed == []

    run_scenario(scenario)


def test_step_that_a_survivor_has_taken_counts() -> None:
    async def scenario() -> None:
        node = Node(ranks=3)
        await node.restored_ranks([FIRST, NEIGHBOUR, THIRD])
        step, _ = await ordered(node, 0, 3)
        node.receive(None, gone(FIRST))
        node.receive(NEIGHBOUR, stepped(0))
        await asyncio.sleep(1.0)
        assert not step.done(), "the other survivor has not replied"
        node.receive(THIRD, m.GangBroken(epoch=node.gang.life, problem="rank 0 is gone"))
        assert (await step).digest == "theta-0"
        assert not node.gang.is_restored()

    run_scenario(scenario)


def test_step_that_only_a_dead_rank_has_taken_does_not_count() -> None:
    async def scenario() -> None:
        node = Node(ranks=3)
        await node.restored_ranks([FIRST, NEIGHBOUR, THIRD])
        step, _ = await ordered(node, 0, 3)
        node.receive(FIRST, stepped(0))
        node.receive(None, gone(FIRST))
        for worker in (NEIGHBOUR, THIRD):
            node.receive(worker, m.GangBroken(epoch=node.gang.life, problem="rank 0 is gone"))
        with pytest.raises(GangLost):
            await step

    run_scenario(scenario)


def test_elastic_gang_goes_on_with_the_survivors_and_grows_when_asked() -> None:
    async def scenario() -> None:
        node = Node(ranks=2, elastic=True)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        node.receive(None, gone(NEIGHBOUR))
        present = asyncio.create_task(node.gang.present())
        await node.formed([FIRST], [5])
        assert await present is False
        await node.gang.restore(5, "", source=0)
        assert node.orders.empty(), "it holds its own state"
        node.join(REPLACEMENT)
        assert node.gang.is_restored(), "it works on until it is told to grow"
        growing = asyncio.create_task(node.gang.grow())
        await node.formed([FIRST, REPLACEMENT], [5, 0])
        await growing
        assert not node.gang.is_restored()
        assert node.gang.holder(5) == 0

    run_scenario(scenario)


def test_elastic_gang_waits_for_all_ranks_at_its_start_as_long_as_a_worker_may_take() -> None:
    async def scenario() -> None:
        node = Node(ranks=2, start_s=30.0, elastic=True)
        node.join(FIRST)
        present = asyncio.create_task(node.gang.present())
        await asyncio.sleep(25.0)
        node.hub.flush()
        assert node.orders.empty()
        await asyncio.sleep(10.0)
        node.hub.flush()
        await node.formed([FIRST])
        await present

    run_scenario(scenario)


def test_rank_that_the_others_wait_for_in_an_exchange_is_the_one_that_is_killed() -> None:
    async def scenario() -> None:
        node = Node(ranks=3)
        await node.restored_ranks([FIRST, NEIGHBOUR, THIRD])
        step, _ = await ordered(node, 0, 3)
        for waiting in (FIRST, THIRD):
            node.receive(waiting, m.AwaitsRanks(step=0, part=0))
        while not node.killed:
            await asyncio.sleep(TIMEOUT_S / 10)
        assert node.killed == [NEIGHBOUR]
        for waiting in (FIRST, THIRD):
            node.receive(waiting, m.GangBroken(epoch=node.gang.life, problem="rank 1 is gone"))
        with pytest.raises(GangLost):
            await step
        assert node.killed == [NEIGHBOUR]

    run_scenario(scenario)


def test_rank_that_stays_in_the_exchange_after_the_hung_one_is_killed_is_killed_too() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        step, _ = await ordered(node, 0, 2)
        node.receive(FIRST, m.AwaitsRanks(step=0, part=0))
        with pytest.raises(GangLost):
            await step
        assert node.killed == [NEIGHBOUR, FIRST]

    run_scenario(scenario)


def test_gang_whose_ranks_cannot_connect_forms_again() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        node.join(FIRST)
        node.join(NEIGHBOUR)
        present = asyncio.create_task(node.gang.present())
        opening = await node.orders.get()
        assert isinstance(opening, m.FormGang)
        node.receive(FIRST, m.GangBroken(epoch=opening.epoch, problem="its port is taken"))
        with pytest.raises(GangLost, match="its port is taken"):
            await present
        again = asyncio.create_task(node.gang.present())
        await node.formed([FIRST, NEIGHBOUR])
        await again

    run_scenario(scenario)


def test_ranks_on_different_devices_are_allowed_and_noted() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        node.join(FIRST, kind="NVIDIA H200")
        node.join(NEIGHBOUR, kind="NVIDIA A100")
        present = asyncio.create_task(node.gang.present())
        await node.formed([FIRST, NEIGHBOUR])
        await present
        (problem,) = node.hub.dispatcher.setbacks.problems
        assert "different devices (NVIDIA A100: reserved-1/1; NVIDIA H200: reserved-1/0)" in problem

    run_scenario(scenario)


def test_every_rank_that_has_trained_is_replaced_at_once_where_a_gang_begins_at_the_base_model() -> None:
    async def scenario() -> None:
        node = Node(ranks=3)
        await node.restored_ranks([FIRST, NEIGHBOUR, THIRD])
        step, _ = await ordered(node, 0, 3)
        node.receive(None, gone(THIRD))
        for worker in (FIRST, NEIGHBOUR):
            node.receive(worker, m.GangBroken(epoch=node.gang.life, problem="rank 2 is gone"))
        with pytest.raises(GangLost):
            await step
        fourth = WorkerId("reserved-1.1/2.2")
        node.join(fourth)
        restoring = asyncio.create_task(node.gang.restore(0, ""))
        await node.formed([FIRST, NEIGHBOUR, fourth], [1, 1, 0])
        with pytest.raises(GangLost):
            await restoring
        assert node.killed == [FIRST, NEIGHBOUR]

    run_scenario(scenario)


def test_rank_whose_transfer_broke_half_way_is_replaced_where_no_checkpoint_exists() -> None:
    async def scenario() -> None:
        node = Node(ranks=2)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        node.receive(None, gone(NEIGHBOUR))
        node.join(REPLACEMENT)
        restoring = asyncio.create_task(node.gang.restore(1, "", source=0))
        await node.formed([FIRST, REPLACEMENT], [1, 0])
        await node.orders.get()
        node.receive(None, gone(FIRST))
        with pytest.raises(GangLost):
            await restoring
        first = WorkerId("reserved-1.1/0.2")
        node.join(first)
        for _ in range(node.orders.qsize()):
            node.orders.get_nowait()
        again = asyncio.create_task(node.gang.restore(0, ""))
        await node.formed([first, REPLACEMENT], [0, -1])
        with pytest.raises(GangLost):
            await again
        assert node.killed == [REPLACEMENT]

    run_scenario(scenario)


def test_elastic_gang_that_shrinks_is_noted_with_the_missing_slot() -> None:
    async def scenario() -> None:
        node = Node(ranks=2, elastic=True)
        await node.restored_ranks([FIRST, NEIGHBOUR])
        node.receive(None, gone(NEIGHBOUR))
        present = asyncio.create_task(node.gang.present())
        await node.formed([FIRST], [5])
        await present
        (problem,) = node.hub.dispatcher.setbacks.problems
        assert "training goes on with 1 ranks, without 1 of 2 training ranks (reserved-1/1" in problem

    run_scenario(scenario)
