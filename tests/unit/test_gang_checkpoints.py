"""Checkpoints as the gang sees them: under way beside other orders, and never of a gang that is lost."""

import asyncio

import pytest
from gang_stories import FIRST, SECOND, TIMEOUT_S, Node, stepped, told, train

from spotlight.controller.gang import GangLost
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId

SAVED = m.Saved(step=2, path="checkpoints/2")


def test_checkpoint_and_step_are_under_way_together_and_each_is_ended_by_its_own_answer() -> None:
    async def story() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        ordered = asyncio.create_task(node.gang.step(train(2)))
        assert [type(await node.orders.get()) for _ in range(2)] == [m.Save, m.Train]
        node.says(FIRST, stepped(2))
        assert (await ordered).digest == "theta-2"
        assert not saving.done()
        following = asyncio.create_task(node.gang.step(train(3)))
        await node.orders.get()
        node.says(FIRST, SAVED)
        await saving
        assert not following.done()
        node.says(FIRST, stepped(3))
        await following

    told(story)


def test_checkpoint_of_a_gang_that_dies_is_lost_and_its_late_word_is_not_taken_for_that_of_the_next_life() -> None:
    """The surviving rank 0 finishes what it was writing: it is whole, and the gang goes back all the same."""

    async def story() -> None:
        node = Node(ranks=2)
        node.arrives(FIRST)
        node.arrives(SECOND)
        restored = m.Saved(step=1, path="checkpoints/1", restored=True)
        restoring = asyncio.create_task(node.gang.restore(1, "checkpoints/1"))
        await node.orders.get()
        node.says(FIRST, restored)
        await restoring
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await node.orders.get()
        node.says(None, m.Gone(worker=SECOND, cause="killed"))
        with pytest.raises(GangLost):
            await saving
        node.arrives(WorkerId("reserved-1.1/0.3"))
        restoring = asyncio.create_task(node.gang.restore(1, "checkpoints/1"))
        await node.orders.get()
        node.says(FIRST, SAVED)
        node.says(FIRST, restored)
        await restoring
        again = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await asyncio.sleep(1.0)
        assert not again.done()
        node.says(FIRST, SAVED)
        await again

    told(story)


def test_checkpoint_whose_gang_dies_with_its_word_does_not_count() -> None:
    """Who notices the death first may be on the way to the checkpoint before already."""

    async def story() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await asyncio.sleep(1.0)
        node.says(FIRST, SAVED)
        node.says(None, m.Gone(worker=FIRST, cause="killed"))
        with pytest.raises(GangLost):
            await saving

    told(story)


def test_word_of_a_worker_that_was_replaced_does_not_end_the_checkpoint_of_its_successor() -> None:
    async def story() -> None:
        node = Node()
        await node.restored(FIRST)
        node.gang.save(2, "checkpoints/2")
        await node.orders.get()
        await node.restored(SECOND)
        again = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        node.says(FIRST, SAVED)
        await asyncio.sleep(1.0)
        assert not again.done()
        node.says(SECOND, SAVED)
        await again

    told(story)


def test_checkpoint_that_cannot_be_written_ends_itself_though_nothing_else_is_ordered() -> None:
    async def story() -> None:
        node = Node()
        await node.restored(FIRST)
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await node.orders.get()
        node.says(FIRST, m.Failed(problem="the checkpoint cannot be written", exit_code=4))
        with pytest.raises(Stopped, match="the checkpoint cannot be written"):
            await saving

    told(story)


def test_checkpoint_that_is_never_written_costs_its_time_limit_and_the_worker() -> None:
    async def story() -> None:
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

    told(story)
