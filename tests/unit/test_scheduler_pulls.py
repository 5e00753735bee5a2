"""Pulls of the scheduler: offers of rows that stand, are replaced, repeated or withdrawn."""

from math import inf

import pytest
from scheduled_world import CURRENT, World, given_to, request, requests

from spotlight.control.scheduler.state import REPLACED_LIMIT
from spotlight.core.messages import Pull
from spotlight.core.work import SlotClass


@pytest.fixture
def world() -> World:
    return World()


def test_a_pull_stands_until_there_is_work(world):
    worker = world.join("a")
    assert world.give(worker) == []
    wanted = world.issue(*requests(2))
    assert given_to(worker, world.assign()) == wanted


def test_a_pull_is_answered_once_and_never_with_more_rows_than_offered(world):
    world.issue(*requests(8))
    worker = world.join("a")
    assert len(world.give(worker, 3)) == 3
    assert world.assign() == []
    assert len(world.give(worker, 5)) == 5


def test_a_pull_answered_in_part_is_answered(world):
    world.issue(*requests(2))
    worker = world.join("a")
    given = world.give(worker, 8)
    world.issue(*requests(2, group=1))
    assert world.assign() == []
    assert world.scheduler.seconds_left(CURRENT) == 40.0
    for name in given:
        world.finish(worker, name)
    assert world.scheduler.seconds_left(CURRENT) == inf, "no worker pulls and none is at work"
    assert len(world.give(worker, 8)) == 2


def test_a_pull_taken_back_with_no_rows_is_not_served(world):
    worker = world.join("a")
    world.pull(worker, 8)
    world.pull(worker, 0)
    world.issue(request(0))
    assert world.assign() == []


def test_a_pull_that_crossed_an_assignment_does_not_offer_its_rows_twice(world):
    world.issue(*requests(8))
    worker = world.join("a", rows=4)
    assert world.scheduler.is_current(worker, Pull(free_rows=4, answered=0), world.now)
    world.pull(worker, 4)
    assert len(given_to(worker, world.assign())) == 4
    assert not world.scheduler.is_current(worker, Pull(free_rows=4, answered=0), world.now)
    assert world.scheduler.is_current(worker, Pull(free_rows=1, answered=1), world.now)


def test_a_repeated_pull_does_not_replace_a_newer_one(world):
    worker = world.join("a", rows=4)
    for number, expected in ((1, True), (2, True), (1, False), (2, False), (3, True)):
        assert world.scheduler.is_current(worker, Pull(free_rows=4, answered=0, number=number), world.now) is expected


def test_pulls_that_replace_one_another_while_nothing_waits_take_no_memory_and_the_last_one_is_served(world):
    worker, other = world.join("a"), world.join("b")
    world.pull(other, 4)
    for _ in range(3 * REPLACED_LIMIT):
        world.pull(worker, 2)
    assert len(world.scheduler._pulls._heap) <= REPLACED_LIMIT + 4
    wanted = world.issue(*requests(6))
    assigned = world.assign()
    assert sorted(given_to(worker, assigned) + given_to(other, assigned)) == sorted(wanted)


def test_a_worker_that_never_joined_or_was_lost_is_given_nothing(world):
    world.issue(request(0))
    worker = world.join("a")
    world.lose(worker)
    world.pull(worker, 8)
    assert world.assign() == []
    assert world.scheduler.workers() == []


def test_a_hello_that_comes_twice_keeps_what_the_worker_holds(world):
    wanted = world.issue(*requests(2))
    worker = world.join("a")
    world.give(worker)
    world.scheduler.join(worker, SlotClass.SPOT, 8, world.now)
    assert world.lose(worker) == wanted
