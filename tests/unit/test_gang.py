"""The gang: an order is ended by its own answer, by a death, or by its time limit."""

import asyncio

import msgspec
import pytest
from gang_stories import FIRST, SECOND, TIMEOUT_S, Node, run_scenario, stepped, train

from spotlight.controller.gang import GangLost
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, WeightsId, Work

PROMPT = Prompt(text="a word")
SAMPLE = Sample(prompt=PROMPT.id, seed=1, sampling=Sampling(steps=2, size=Size(8, 8)), version=Version(0))
ITEM = m.TrainItem(
    request=Request(work=Work.ROLLOUT, iteration=0, group=0, sample=SAMPLE),
    prompt=PROMPT, payload="p", advantage=0.0, kept=True,
)  # fmt: skip


def test_late_answer_of_an_earlier_step_is_not_taken_for_the_current_one() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        ordered = asyncio.create_task(node.gang.step(train(3)))
        await node.orders.get()
        node.receive(FIRST, stepped(2))
        node.receive(FIRST, stepped(3))
        assert (await ordered).digest == "theta-3"

    run_scenario(scenario)


def test_part_is_ended_by_its_own_answer_and_not_by_that_of_the_part_before() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        part = m.Train(step=3, iteration=3, items=(), last=True, part=1, samples=4, is_final=False)
        ordered = asyncio.create_task(node.gang.accumulate(part))
        await node.orders.get()
        for late in (m.Accumulated(step=3, part=0), m.Accumulated(step=2, part=1), stepped(3)):
            node.receive(FIRST, late)
            await asyncio.sleep(1.0)
            assert not ordered.done()
        node.receive(FIRST, m.Accumulated(step=3, part=1))
        assert (await ordered).part == 1

    run_scenario(scenario)


def test_gang_counts_as_restored_until_its_worker_is_gone() -> None:
    async def scenario() -> None:
        node = Node()
        assert not node.gang.is_restored()
        await node.restored(FIRST)
        assert node.gang.is_restored()
        node.receive(None, m.Gone(worker=FIRST, cause="killed"))
        assert not node.gang.is_restored()
        node.join(SECOND)
        assert not node.gang.is_restored()
        await node.restored(SECOND)
        assert node.gang.is_restored()

    run_scenario(scenario)


def test_late_reply_about_other_weights_or_another_checkpoint_does_not_end_an_order() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        older, newer = WeightsId(Version(1)), WeightsId(Version(2))
        ordered = asyncio.create_task(node.gang.publish((newer,)))
        await node.orders.get()
        node.receive(FIRST, m.PublishedWeights(weights=older, digest="old", size=1, step=1))
        node.receive(FIRST, m.PublishedWeights(weights=newer, digest="new", size=1, step=2))
        assert [published.digest for published in await ordered] == ["new"]
        saving = asyncio.create_task(node.gang.saved(node.gang.save(2, "checkpoints/2")))
        await node.orders.get()
        for late in (m.Saved(step=1, path="checkpoints/1"), m.Saved(step=2, path="checkpoints/2", restored=True)):
            node.receive(FIRST, late)
            await asyncio.sleep(1.0)
            assert not saving.done()
        node.receive(FIRST, m.Saved(step=2, path="checkpoints/2"))
        await saving

    run_scenario(scenario)


def test_ranks_that_publish_receive_no_work_until_they_pull_again() -> None:
    """A row that they received would wait for the order, while other workers are free."""

    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        scheduler = node.hub.dispatcher.scheduler
        node.receive(FIRST, m.Pull(free_rows=1, number=1))
        assert scheduler.has_pull(FIRST)
        weights = WeightsId(Version(1))
        ordered = asyncio.create_task(node.gang.publish((weights,)))
        assert isinstance(await node.orders.get(), m.Publish)
        assert not scheduler.has_pull(FIRST)
        node.receive(FIRST, m.Pull(free_rows=1, number=2))
        assert scheduler.has_pull(FIRST)
        node.receive(FIRST, m.PublishedWeights(weights=weights, digest="d", size=1, step=0))
        await ordered

    run_scenario(scenario)


def test_gang_that_hangs_in_a_step_is_killed_and_lost_with_a_reason() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        began = asyncio.get_running_loop().time()
        with pytest.raises(GangLost):
            await node.gang.step(train(0))
        assert asyncio.get_running_loop().time() - began == pytest.approx(TIMEOUT_S)
        assert node.killed == [FIRST]
        (problem,) = node.hub.dispatcher.setbacks.problems
        assert f"{FIRST} sent no reply to Train within 100 s" in problem
        assert "train.timeout_s" in problem
        assert node.orders.get_nowait() == train(0)
        await node.restored(SECOND)

    run_scenario(scenario)


def test_gang_that_hangs_and_cannot_be_killed_stops_the_run() -> None:
    async def scenario() -> None:
        node = Node()
        node.dies_when_killed = False
        await node.restored(FIRST)
        with pytest.raises(Stopped, match=f"{FIRST} sent no reply to Train .* could not be killed"):
            await node.gang.step(train(0))

    run_scenario(scenario)


def test_failure_ends_whatever_was_ordered() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        ordered = asyncio.create_task(node.gang.step(train(0)))
        await node.orders.get()
        node.receive(FIRST, m.Failed(problem="out of memory", exit_code=4))
        with pytest.raises(Stopped, match="out of memory"):
            await ordered

    run_scenario(scenario)


def test_surplus_worker_that_leaves_returns_the_gang_to_the_worker_it_replaced() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        node.join(SECOND)
        assert not node.gang.is_restored()
        node.receive(None, m.Gone(worker=SECOND, cause="ended"))
        ordered = asyncio.create_task(node.gang.restore(3, "checkpoints/3"))
        assert isinstance(await node.orders.get(), m.Restore)
        node.receive(FIRST, m.Saved(step=3, path="checkpoints/3", restored=True))
        await ordered
        assert node.gang.is_restored()
        assert node.killed == []

    run_scenario(scenario)


def test_step_counts_though_a_surplus_worker_came_and_went_in_the_meantime() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        ordered = asyncio.create_task(node.gang.step(train(3)))
        await node.orders.get()
        node.join(SECOND)
        assert not node.gang.is_restored()
        node.receive(None, m.Gone(worker=SECOND, cause="ended"))
        node.receive(FIRST, stepped(3))
        async with asyncio.timeout(1.0):
            assert (await ordered).digest == "theta-3"

    run_scenario(scenario)


def test_hello_of_an_older_worker_that_arrives_late_does_not_take_the_gang_from_its_replacement() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(SECOND)
        node.join(FIRST)
        assert node.gang.is_restored()

    run_scenario(scenario)


def test_worker_that_has_trained_is_replaced_where_a_gang_begins_at_the_base_model() -> None:
    async def scenario() -> None:
        node = Node()
        await node.restored(FIRST)
        ordered = asyncio.create_task(node.gang.step(train(0)))
        await node.orders.get()
        node.receive(FIRST, stepped(0))
        await ordered
        node.join(SECOND)
        node.receive(None, m.Gone(worker=SECOND, cause="ended"))
        with pytest.raises(GangLost):
            await node.gang.restore(0, "")
        assert node.killed == [FIRST]

    run_scenario(scenario)


def test_order_that_takes_far_longer_than_earlier_ones_of_its_size_hangs_long_before_the_settings_limit() -> None:
    async def scenario() -> None:
        node = Node(start_s=5.0)
        await node.restored(FIRST)
        ordered = asyncio.create_task(node.gang.step(train(0)))
        await node.orders.get()
        await asyncio.sleep(0.5)
        node.receive(FIRST, stepped(0))
        await ordered
        began = asyncio.get_running_loop().time()
        with pytest.raises(GangLost):
            await node.gang.step(train(1))
        assert node.killed == [FIRST]
        assert asyncio.get_running_loop().time() - began < TIMEOUT_S / 2

    run_scenario(scenario)


def test_larger_order_may_take_longer_in_proportion() -> None:
    async def scenario() -> None:
        node = Node(start_s=1.0)
        await node.restored(FIRST)
        for step, (samples, seconds) in enumerate([(1, 0.5), (16, 40.0)]):
            order = msgspec.structs.replace(train(step), items=tuple(ITEM for _ in range(samples)))
            ordered = asyncio.create_task(node.gang.step(order))
            await node.orders.get()
            await asyncio.sleep(seconds)
            node.receive(FIRST, stepped(step))
            await ordered
        assert node.killed == []

    run_scenario(scenario)
