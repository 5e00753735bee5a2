"""Trainers that roll out what nobody waits for yet: before they train what is there, and while they starve."""

import pytest
from assist_stories import DRAWN, ROWS, SPEED, SPOT, TRAINS, Tale
from scheduled_world import request

from spotlight.control.pipeline.assist import Foreseen


def test_trainers_begin_what_they_will_wait_for_while_others_fetch() -> None:
    """The spot worker holds the weights after 5 s and then takes 10 s: with 3 s of training now, 12 s would be lost,
    and both are equally fast; a step of 1 s is left for handing over."""
    for fetch_s, ready_s, expected in ((5.0, 3.0, 4.0), (5.0, 9.0, 3.0), (5.0, 14.5, 0.0), (0.0, 3.0, 0.0)):
        tale = Tale()
        tale.announced(fetch_s)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen(groups[:1], 1, 20.0)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == expected


def test_trainers_that_have_to_fetch_as_well_begin_only_what_they_can_draw_before_the_others() -> None:
    """As above, but the trainer holds the weights after 2 s, of which it draws nothing: a part of what is lost."""
    for own_s, ready_s, expected in (
        (2.0, 3.0, 4.0),
        (2.0, 9.0, 4.0),
        (2.0, 10.0, 3.5),
        (3.5, 3.0, 0.0),
        (6.0, 3.0, 0.0),
    ):
        tale = Tale()
        tale.announced(5.0, own_s)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen(groups[:1], 1, 20.0)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == expected


def test_trainers_look_beyond_parts_that_are_there_for_one_that_they_will_wait_for() -> None:
    """As in the first of these, but a group that is drawn already comes before the one that is not: its 3 s of training
    are as much less to wait, and the wait is all the same, although the part that follows is there."""
    for ready_s, expected in ((3.0, 4.0), (6.0, 3.0), (11.5, 0.0)):
        tale = Tale()
        tale.announced(5.0)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen([DRAWN, groups[0]], 1, 20.0, sample_s=0.3)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == pytest.approx(expected)


def test_trainers_roll_out_at_once_though_a_part_is_there_until_they_train() -> None:
    for at_once in (True, False):
        tale = Tale()
        groups = tale.issue(3)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.assist.wait(lambda last=groups[-1]: Foreseen([DRAWN, last], 1, 20.0, 0.3), tale.now, at_once)
        tale.asks(TRAINS)
        assert tale.helps() is at_once
        tale.assist.train([TRAINS], tale.now)
        tale.waits([DRAWN], train_s=20.0)
        tale.given[TRAINS].clear()
        tale.asks(TRAINS)
        assert not tale.helps(), "another wait is decided about anew"


def test_trainers_that_may_not_help_begin_nothing_before_they_train() -> None:
    tale = Tale(tag=False)
    tale.announced(5.0)
    groups = tale.issue(2)
    for worker in (SPOT, TRAINS):
        tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
    assert tale.assist.head_start_s(Foreseen(groups[:1], 1, 20.0), 3.0, tale.now) == 0.0


def test_trainers_starve_while_all_is_held_and_the_next_part_is_far() -> None:
    tale = Tale()
    groups = tale.issue(1)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    assert not tale.assist.is_starved(tale.now)
    tale.waits(groups, train_s=20.0)
    assert tale.assist.is_starved(tale.now)
    tale.now = 9.5
    assert not tale.assist.is_starved(tale.now)


def test_trainers_do_not_starve_while_something_waits() -> None:
    tale = Tale()
    groups = tale.issue(2)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    tale.waits(groups[:1], train_s=20.0)
    assert not tale.assist.is_starved(tale.now)


def test_help_with_groups_ahead_though_training_is_the_longest() -> None:
    for iteration, helps in ((1, True), (0, False)):
        tale = Tale()
        groups = tale.issue(1)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.asks(TRAINS)
        ahead = [request(seed, 1, iteration=iteration) for seed in range(100, 110)]
        tale.ledger.issue(ahead)
        tale.scheduler.add(ahead)
        foreseen = Foreseen(groups, 1, 1000.0, 0.0, iteration=0)
        tale.assist.wait(lambda foreseen=foreseen: foreseen, tale.now)
        tale.serve()
        assert tale.helps() is helps
