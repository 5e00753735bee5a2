"""Checkpoints as the gang sees them: concurrent with other orders, and never of a gang that is lost."""

import asyncio

import pytest
from gang_stories import FIRST, NEIGHBOUR, SECOND, TIMEOUT_S, Node, run_scenario, stepped, train

from spotlight.controller.gang import GangLost
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId

SAVED = m.Saved(step=2, path="checkpoints/2")


def test_checkpoint_and_step_run_together_and_each_is_ended_by_its_own_answer() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        ordered = asyncio.create_task(node.gang.step(train(2)))
        assert [type(await node.orders.get()) for _ in range(2)] == [m.Save, m.Train]
        node.receive(FIRST, stepped(2))
        assert (await ordered).digest == "theta-2"
        assert not saving.done()
        following = asyncio.create_task(node.gang.step(train(3)))
        await node.orders.get()
        node.receive(FIRST, SAVED)
        await saving
        assert not following.done()
        node.receive(FIRST, stepped(3))
        await following

    run_scenario(scenario)


def test_checkpoint_of_a_gang_that_dies_is_lost_and_its_late_reply_does_not_count_for_the_next_gang() -> None:
    """The surviving rank 0 finishes the checkpoint it was writing; it is whole, but the gang still goes back."""

    async def scenario() -> None:
        node, replacement = Node(ranks=2), WorkerId("reserved-1.1/1.2")
        await node.restored_ranks([FIRST, NEIGHBOUR], 1, "checkpoints/1")
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        assert [await node.orders.get() for _ in range(2)] == [m.Save(step=2, path="checkpoints/2")] * 2
        node.receive(None, m.Gone(worker=NEIGHBOUR, cause="killed"))
        with pytest.raises(GangLost):
            await saving
        node.join(replacement)
        restoring = asyncio.create_task(node.gang.restore(1, "checkpoints/1"))
        await node.formed([FIRST, replacement])
        node.receive(FIRST, SAVED)
        for worker in (FIRST, replacement):
            await node.orders.get()
            node.receive(worker, m.Saved(step=1, path="checkpoints/1", restored=True))
        await restoring
        again = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await asyncio.sleep(1.0)
        assert not again.done()
        node.receive(FIRST, SAVED)
        await again

    run_scenario(scenario)


def test_checkpoint_whose_gang_dies_right_after_reporting_it_does_not_count() -> None:
    """The part of the controller that notices the death first may already be restoring the checkpoint before."""

    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await asyncio.sleep(1.0)
        node.receive(FIRST, SAVED)
        node.receive(None, m.Gone(worker=FIRST, cause="killed"))
        with pytest.raises(GangLost):
            await saving

    run_scenario(scenario)


def test_reply_of_a_replaced_worker_does_not_end_the_checkpoint_of_its_successor() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        node.gang.save(2, "checkpoints/2")
        await node.orders.get()
        await node.restored(SECOND)
        again = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        node.receive(FIRST, SAVED)
        await asyncio.sleep(1.0)
        assert not again.done()
        node.receive(SECOND, SAVED)
        await again

    run_scenario(scenario)


def test_checkpoint_that_cannot_be_written_ends_its_own_order() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await node.orders.get()
        node.receive(FIRST, m.Failed(problem="the checkpoint cannot be written", exit_code=4))
        with pytest.raises(Stopped, match="the checkpoint cannot be written"):
            await saving

    run_scenario(scenario)


def test_checkpoint_that_is_never_written_costs_its_time_limit_and_the_worker() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await asyncio.sleep(TIMEOUT_S / 2)
        ordered = asyncio.create_task(node.gang.step(train(2)))
        for lost in (saving, ordered):
            with pytest.raises(GangLost):
                await lost
        assert node.killed == [FIRST]
        (problem,) = node.hub.dispatcher.setbacks.problems
        assert f"{FIRST} sent no reply to Save within 100 s" in problem

    run_scenario(scenario)
