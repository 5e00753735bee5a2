"""Rounds with many pulls and few waiting requests: nearly all are refused, and the outcome is that of one-by-one."""

import pytest
from scheduled_world import EXACT, World, given_to, request, requests

from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind

CROWD = 40


@pytest.fixture
def world() -> World:
    return World(EXACT)


def crowd(world: World, count: int = CROWD) -> list[WorkerId]:
    """Workers with the same measured speed, each with a pull of one row."""
    workers = [world.join(f"w{number:03}", rows=1) for number in range(count)]
    for worker in workers:
        world.pull(worker, 1, 1.0)
    return workers


def test_request_that_comes_back_to_an_idle_crowd_goes_to_the_oldest_pull_and_then_to_the_next(world):
    (wanted,) = world.issue(request(0))
    busy, *idle = crowd(world)
    assert given_to(busy, world.assign()) == [wanted]
    holders = [busy]
    for expected in idle[:5]:
        world.hand_back(holders[-1], wanted, 0)
        assert given_to(expected, world.assign()) == [wanted]
        holders.append(expected)


def test_leaving_crowd_with_time_for_little_takes_what_is_short_one_after_the_other(world):
    slow = world.join("slow", rows=8)
    short = world.issue(*requests(3))
    assert world.give(slow, 8, 1.0) == short
    leaving = crowd(world)
    for worker in leaving:
        world.scheduler.warn(worker, NoticeKind.IMMINENT, 5.0, world.now)
    world.issue(*requests(50, group=1, steps=100))
    assert world.assign() == []
    world.progress(slow, 7)
    for wanted, taker in zip(short, leaving, strict=False):
        world.hand_back(slow, wanted, 7)
        world.scheduler.heartbeat(taker, [], world.now)
        assert given_to(taker, world.assign()) == [wanted]


def test_leaving_crowd_is_served_from_a_queue_whose_next_is_short_enough(world):
    leaving = crowd(world)
    for worker in leaving:
        world.scheduler.warn(worker, NoticeKind.IMMINENT, 5.0, world.now)
    world.issue(*requests(50, steps=100))
    assert world.assign() == []
    (short,) = world.issue(request(0, group=0, iteration=-1, steps=4))
    world.scheduler.heartbeat(leaving[0], [], world.now)
    assert given_to(leaving[0], world.assign()) == [short]
