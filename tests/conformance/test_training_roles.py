"""The real training role and the simulated one reply alike to every order, refuse the same ones in the same words, and
lose ranks alike."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from training_roles import Ranks, RealRanks, SimRanks

from spotlight.compute.train.training_effects import Order
from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId

STEP_1 = m.Save(step=1, path="checkpoints/step_1")
WEIGHTS = WeightsId(Version(1))


class Roles:
    """Orders of a controller to one or two processes."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.epoch = 0

    def order(self, order: Order, process: int = 0) -> list[m.AnyMessage]:
        return self.ranks.together({process: order})[process]

    def both(self, order: Order) -> list[list[m.AnyMessage]]:
        sent = self.ranks.together({0: order, 1: order})
        return [sent[0], sent[1]]

    def train(self, numbers: Sequence[int], step: int = 0, lag: int = 0, **fields: Any) -> m.Train:
        items = self.ranks.items(numbers, step, lag)
        return m.Train(step=step, iteration=step, items=items, **{"last": True, **fields})

    def form(self, *processes: int) -> list[m.AnyMessage]:
        """Form the next gang of these processes; returns the reply of each."""
        self.epoch += 1
        store = ""
        if len(processes) > 1:
            (opened,) = self.order(self.forming(0, len(processes)), processes[0])
            assert isinstance(opened, m.StoreOpened), opened
            store = opened.store
        orders = {process: self.forming(rank, len(processes), store) for rank, process in enumerate(processes)}
        sent = self.ranks.together(orders)
        return [message for process in processes for message in sent[process]]

    def forming(self, rank: int, ranks: int, store: str = "") -> m.FormGang:
        return m.FormGang(epoch=self.epoch, rank=rank, ranks=ranks, store=store)


@pytest.fixture(params=["real", "simulated"])
def roles(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roles:
    return Roles(RealRanks(2, tmp_path, monkeypatch) if request.param == "real" else SimRanks(2, monkeypatch))


def assert_refused(sent: Sequence[m.AnyMessage], problem: str) -> None:
    (failed,) = sent
    assert isinstance(failed, m.Failed), failed
    assert failed.exit_code == 4
    assert re.search(problem, failed.problem), failed.problem


def stepped(sent: Sequence[m.AnyMessage]) -> m.Stepped:
    assert isinstance(sent[-1], m.Stepped), sent
    return sent[-1]


def test_parts_are_counted_and_the_final_one_is_a_step(roles: Roles) -> None:
    first = roles.order(roles.train([0, 1], part=0, samples=4, is_final=False))
    assert first == [m.Accumulated(step=0, part=0)]
    assert stepped(roles.order(roles.train([2, 3], part=1, samples=4))).step == 0
    assert stepped(roles.order(roles.train([0, 1], step=1))).step == 1


def test_part_0_begins_the_step_anew(roles: Roles) -> None:
    roles.order(roles.train([4, 5], part=0, samples=8, is_final=False))
    parts = [roles.train([0, 1], part=0, samples=4, is_final=False), roles.train([2, 3], part=1, samples=4)]
    for part in parts:
        sent = [roles.order(part, process) for process in (0, 1)]
    digests = {stepped(each).digest for each in sent}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"numbers": [2, 3], "step": 1, "part": 1, "samples": 4}, "holds 0 steps but step 1 was ordered"),
        ({"numbers": [2, 3], "part": 2, "samples": 4}, "part 2 of step 0 .* has accumulated 1 parts of it"),
        ({"numbers": [1, 2], "part": 1, "samples": 4}, "part 1 of step 0 has a sample that the step already has"),
        ({"numbers": [2, 3], "part": 1}, "part 1 of step 0 has no sample count"),
        ({"numbers": [2, 3], "part": 1, "samples": 8}, "8 samples, but its parts have 4, so some were lost"),
        ({"numbers": [2, 3], "part": 1, "samples": 4, "lag": 2}, "is of version -2 but iteration 0"),
        ({"numbers": []}, "step 0 has no sample"),
    ],
    ids=["wrong step", "out of order", "duplicate", "no count", "lost samples", "too old", "empty"],
)
def test_part_that_does_not_fit_is_refused_and_the_right_one_may_still_come(
    roles: Roles, fields: dict[str, Any], problem: str
) -> None:
    roles.order(roles.train([0, 1], part=0, samples=4, is_final=False))
    assert_refused(roles.order(roles.train(**fields)), problem)
    assert stepped(roles.order(roles.train([2, 3], part=1, samples=4))).step == 0


def test_part_whose_tensors_are_lost_can_be_ordered_again(roles: Roles) -> None:
    roles.order(roles.train([0, 1], part=0, samples=4, is_final=False))
    order = roles.train([2, 3], part=1, samples=4)
    roles.ranks.lose(order.items[1])
    (failed,) = roles.order(order)
    assert isinstance(failed, m.Failed)
    assert stepped(roles.order(roles.train([2, 3], part=1, samples=4))).step == 0


def test_restore_is_of_the_step_that_was_ordered(roles: Roles) -> None:
    roles.order(roles.train([0, 1]))
    assert roles.order(STEP_1) == [m.Saved(step=1, path=STEP_1.path)]
    roles.order(roles.train([0, 1], step=1))
    restored = roles.order(m.Restore(step=1, path=STEP_1.path))
    assert restored == [m.Saved(step=1, path=STEP_1.path, restored=True)]
    assert_refused(roles.order(m.Restore(step=2, path=STEP_1.path)), "contains 1 steps but 2 were ordered")
    assert_refused(roles.order(m.Restore(step=0, path="")), "has taken 1 steps and cannot go back to none")


def test_restored_role_drops_the_step_under_way(roles: Roles) -> None:
    roles.order(roles.train([0, 1], part=0, samples=4, is_final=False))
    assert roles.order(m.Restore(step=0, path="")) == [m.Saved(step=0, path="", restored=True)]
    assert_refused(roles.order(roles.train([2, 3], part=1, samples=4)), "has accumulated 0 parts")


def test_ranks_report_that_they_wait_and_rank_0_alone_publishes_and_reports_checkpoints(roles: Roles) -> None:
    assert roles.form(0, 1) == [m.GangFormed(epoch=1, steps=0)] * 2
    first, second = roles.both(roles.train(range(4)))
    assert first[0] == second[0] == m.AwaitsRanks(step=0, part=0)
    assert stepped(first).digest == stepped(second).digest
    (published,), other = roles.both(m.Publish(weights=(WEIGHTS,)))
    assert isinstance(published, m.PublishedWeights)
    assert (published.weights, published.step) == (WEIGHTS, 1)
    assert other == []
    assert roles.both(STEP_1) == [[m.Saved(step=1, path=STEP_1.path)], []]
    (average,), other = roles.both(m.Publish(weights=(WeightsId(Version(1), Policy.AVERAGE),)))
    assert isinstance(average, m.PublishedWeights)
    assert other == []


def test_rank_that_refuses_breaks_its_gang_and_the_next_one_has_the_steps_of_each(roles: Roles) -> None:
    roles.order(roles.train(range(4)), 0)
    assert roles.form(0, 1) == [m.GangFormed(epoch=1, steps=1), m.GangFormed(epoch=1, steps=0)]
    order = roles.train(range(4), step=1)
    lost, refused = roles.both(order)
    assert isinstance(lost[-1], m.GangBroken), lost
    assert_refused(refused, "holds 0 steps but step 1 was ordered")
    (again,) = roles.order(order, 0)
    assert isinstance(again, m.GangBroken)
    assert "form the next one" in again.problem
    roles.form(0, 1)
    restored = m.Saved(step=1, path="", restored=True)
    assert roles.both(m.Restore(step=1, path="", source=0)) == [[restored], [restored]]
    first, second = roles.both(order)
    assert stepped(first).digest == stepped(second).digest


def test_transfer_that_breaks_half_way_leaves_no_usable_state_until_the_next_restore(roles: Roles) -> None:
    roles.order(roles.train(range(4)), 0)
    roles.order(STEP_1, 0)
    roles.form(0, 1)
    roles.ranks.lose_in_transfer(0)
    for sent in roles.both(m.Restore(step=1, path="", source=0)):
        assert isinstance(sent[-1], m.GangBroken), sent
    assert roles.form(0, 1) == [m.GangFormed(epoch=2, steps=1), m.GangFormed(epoch=2, steps=-1)]
    assert_refused(roles.order(roles.train(range(4)), 1), "holds -1 steps but step 0 was ordered")
    roles.form(1)
    assert roles.order(m.Restore(step=1, path=STEP_1.path), 1) == [m.Saved(step=1, path=STEP_1.path, restored=True)]


def test_rank_without_a_usable_state_sends_none(roles: Roles) -> None:
    roles.order(roles.train(range(4)), 0)
    roles.form(0, 1)
    roles.ranks.lose_in_transfer(0)
    roles.both(m.Restore(step=1, path="", source=0))
    roles.form(0, 1)
    sent = roles.ranks.together({rank: m.Restore(step=1, path="", source=1) for rank in (0, 1)})
    assert isinstance(sent[0][-1], m.GangBroken)
    assert_refused(sent[1], "rank 1 holds no usable state to send")


def test_state_is_not_received_outside_of_a_gang(roles: Roles) -> None:
    roles.form(0)
    assert_refused(roles.order(m.Restore(step=0, path="", source=0)), "rank outside of a gang")


def test_order_to_form_a_gang_that_was_replaced_is_refused(roles: Roles) -> None:
    roles.epoch = 4
    roles.ranks.announce(0, 5)
    (broken,) = roles.order(roles.forming(0, 2))
    assert isinstance(broken, m.GangBroken)
    assert "gang 4 was replaced by gang 5" in broken.problem
    roles.epoch = 5
    assert roles.order(roles.forming(0, 1)) == [m.GangFormed(epoch=5, steps=0)]


def test_forming_ends_when_a_newer_gang_is_announced(roles: Roles) -> None:
    """The other rank never comes: real ranks would wait a minute."""
    roles.epoch = 1
    (opened,) = roles.order(roles.forming(0, 2))
    assert isinstance(opened, m.StoreOpened)
    roles.ranks.announce(0, 2)
    (broken,) = roles.order(roles.forming(0, 2, opened.store))
    assert isinstance(broken, m.GangBroken)
