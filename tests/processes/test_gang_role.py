"""Training roles as ranks of a gang: orders to all, replies of each, deaths and the gang after them."""

from collections.abc import Iterator

import pytest
from gang_processes import GangRanks
from ordered_gang import Gang
from test_training_role import harness_in

from spotlight.compute.train.config import NftConfig
from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(3)
    yield started
    started.end()


def test_ranks_train_their_shares_and_hold_the_same_bits(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    assert gang.form([0, 1]) == [m.GangFormed(epoch=ranks.epoch, steps=0)] * 2
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    for step in range(3):
        first, second = gang.train([0, 1], step)
        assert isinstance(first, m.Stepped), first
        assert isinstance(second, m.Stepped), second
        assert first.digest == second.digest
        assert second.figures == first.figures
        wanted = single.role.obey(gang.order(step))
        assert isinstance(wanted, m.Stepped)
        assert first.figures == pytest.approx(wanted.figures, rel=1e-3, abs=1e-7)
        assert first.figures["rows"] == 16
        loaded = ranks.all([0, 1], "taken_reads")
        assert [len(names) for names in loaded] == [4, 4]
        assert not set(loaded[0]) & set(loaded[1])
        waits = ranks.all([0, 1], "taken_messages")
        assert waits == [[m.AwaitsRanks(step=step, part=0)]] * 2
    one, other = gang.weights([0, 1])
    assert one == other


def test_parts_of_three_ranks_give_the_step_of_one_process(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1, 2])
    gang.form([0, 1, 2])
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    accumulated = gang.train([0, 1, 2], 0, [0, 1, 2], part=0, samples=8, is_final=False)
    assert accumulated == [m.Accumulated(step=0, part=0)] * 3
    stepped = gang.train([0, 1, 2], 0, [3, 4, 5, 6, 7], part=1, samples=8)
    wanted = single.role.obey(gang.order(0))
    assert isinstance(wanted, m.Stepped)
    assert stepped[0].figures == pytest.approx(wanted.figures, rel=1e-4, abs=1e-8)
    assert len({each.digest for each in stepped}) == 1


def test_only_rank_0_publishes(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    gang.form([0, 1])
    gang.train([0, 1], 0)
    first, second = ranks.all([0, 1], "obey", m.Publish(weights=(WeightsId(Version(1)),)))
    assert isinstance(first, m.PublishedWeights)
    assert second is None


def test_ranks_at_different_steps_are_refused(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    gang.form([0, 1])
    gang.train([0, 1], 0)
    assert gang.form([0]) == [m.GangFormed(epoch=ranks.epoch, steps=1)]
    assert isinstance(gang.train([0], 1)[0], m.Stepped), "a gang of one trains alone"
    assert [reply.steps for reply in gang.form([0, 1])] == [2, 1]
    ahead, behind = gang.train([0, 1], 2)
    assert behind.kind == "Stopped"
    assert ahead.kind == "RankLost"


def test_rows_per_forward_that_ranks_search_end_at_one_size(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run", micro_batch="auto")
    gang.build([0, 1])
    gang.form([0, 1])
    for step in range(8):
        first, second = gang.train([0, 1], step)
        assert first.digest == second.digest
    assert first.figures["micro_batch"] >= 1
    assert gang.weights([0]) == gang.weights([1])


def test_ranks_of_a_crew_train_the_same_rows_and_roll_out_alone(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run", sequence_ranks=2)
    gang.build([0, 1])
    gang.form([0, 1])
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    for step in range(2):
        first, second = gang.train([0, 1], step)
        assert first.digest == second.digest
        wanted = single.role.obey(gang.order(step))
        assert isinstance(wanted, m.Stepped)
        assert first.figures == pytest.approx(wanted.figures, rel=1e-3, abs=1e-7)
        loaded = ranks.all([0, 1], "taken_reads")
        assert loaded[0] == loaded[1]
        assert len(loaded[0]) == 8
        # One rank after the other: a forward that were still split would wait for the other rank.
        assert ranks.call(0, "rolled_out") == ranks.call(1, "rolled_out")


def test_forming_without_a_missing_rank_is_ended_by_the_order_of_the_next_gang(ranks, tmp_path):
    """The limit of forming is a minute."""
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    ranks.epoch += 1
    opened = ranks.call(0, "form", m.FormGang(epoch=ranks.epoch, rank=0, ranks=3))
    orders = [m.FormGang(epoch=ranks.epoch, rank=rank, ranks=3, store=opened.store) for rank in (0, 1)]
    for rank in (0, 1):
        ranks.send(rank, "form", orders[rank], 0.3)
    lost = [ranks.reply(process) for process in (0, 1)]
    assert [each.kind for each in lost] == ["RankLost"] * 2
    assert max(each.seconds for each in lost) < 30.0
    assert gang.form([0, 1]) == [m.GangFormed(epoch=ranks.epoch, steps=0)] * 2
    assert isinstance(gang.train([0, 1], 0)[0], m.Stepped)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", range(1, 8))
def test_rank_killed_in_any_exchange_of_a_step_costs_no_bit(exchange, tmp_path):
    """Survivors may be a step apart: the one that is ahead holds a whole step."""
    ranks = GangRanks(4)
    try:
        undisturbed, gang = Gang(ranks, tmp_path / "a"), Gang(ranks, tmp_path / "b")
        undisturbed.build([0, 1, 2])
        undisturbed.form([0, 1, 2])
        for step in range(3):
            undisturbed.train([0, 1, 2], step)
        (wanted,) = undisturbed.weights([0])

        gang.build([0, 1, 2, 3])
        gang.form([0, 1, 2])
        gang.train([0, 1, 2], 0)
        ranks.call(2, "die_in_exchange", exchange)
        order = gang.order(1)
        for process in (0, 1, 2):
            ranks.send(process, "obey", order)
        for reply in (ranks.reply(0), ranks.reply(1)):
            assert isinstance(reply, m.Stepped) or reply.kind == "RankLost", reply
        steps = [reply.steps for reply in gang.form([0, 1, 3])]
        assert set(steps[:2]) <= {1, 2}
        ahead = max(steps)
        restore = m.Restore(step=ahead, path="", source=steps.index(ahead))
        assert [reply.restored for reply in ranks.all([0, 1, 3], "obey", restore)] == [True] * 3
        for step in range(ahead, 3):
            gang.train([0, 1, 3], step)
        assert gang.weights([0, 1, 3]) == [wanted] * 3
    finally:
        ranks.end()


@pytest.mark.parametrize("survivor_leads", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_rank_killed_in_an_exchange_is_replaced_and_training_continues_with_the_same_bits(survivor_leads, tmp_path):
    """The gradients of the broken step are dropped; the newcomer receives the state in memory."""
    ranks = GangRanks(3)
    try:
        undisturbed, gang = Gang(ranks, tmp_path / "a"), Gang(ranks, tmp_path / "b")
        undisturbed.build([0, 1])
        undisturbed.form([0, 1])
        for step in range(4):
            undisturbed.train([0, 1], step)
        (wanted,) = undisturbed.weights([0])

        gang.build([0, 1, 2])
        gang.form([0, 1])
        for step in range(2):
            gang.train([0, 1], step)
        (before,) = gang.weights([0])
        # A gather takes two exchanges; this is inside the sum of the gradients.
        ranks.call(1, "die_in_exchange", 4)
        order = gang.order(2)
        for process in (0, 1):
            ranks.send(process, "obey", order)
        lost = ranks.reply(0)
        assert (lost.kind, lost.waited_for) == ("RankLost", 1)
        assert gang.weights([0]) == [before], "the step was not taken"

        members = [0, 2] if survivor_leads else [2, 0]
        source = members.index(0)
        assert [reply.steps for reply in gang.form(members)] == ([2, 0] if survivor_leads else [0, 2])
        restored = m.Saved(step=2, path="", restored=True)
        assert ranks.all(members, "obey", m.Restore(step=2, path="", source=source)) == [restored] * 2
        for step in (2, 3):
            gang.train(members, step)
        assert gang.weights(members) == [wanted] * 2
    finally:
        ranks.end()


def test_transfer_that_breaks_half_way_leaves_no_usable_state_until_the_next_restore(tmp_path):
    ranks = GangRanks(3)
    try:
        gang = Gang(ranks, tmp_path / "run")
        gang.build([0, 1, 2])
        gang.form([0])
        gang.train([0], 0)
        ranks.call(0, "obey", m.Save(step=1, path="checkpoints/step_1"))
        assert ranks.call(0, "taken_messages") == [m.Saved(step=1, path="checkpoints/step_1")]
        (kept,) = gang.weights([0])
        gang.form([0, 1])
        # The first two exchanges compare the tensors' names; the next ones send them.
        ranks.call(0, "die_in_exchange", 4)
        for process in (0, 1):
            ranks.send(process, "obey", m.Restore(step=1, path="", source=0))
        assert ranks.reply(1).kind == "RankLost"
        assert [reply.steps for reply in gang.form([1, 2])] == [-1, 0]
        for process in (1, 2):
            ranks.send(process, "obey", m.Restore(step=1, path="checkpoints/step_1"))
        assert [ranks.reply(process).restored for process in (1, 2)] == [True, True]
        assert gang.weights([1, 2]) == [kept] * 2
    finally:
        ranks.end()
