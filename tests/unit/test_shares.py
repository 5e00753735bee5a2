"""Shares of workers of different speed that do not hold new weights at the same instant."""

import pytest
from scheduled_world import CURRENT, World, given_to, requests

from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason


@pytest.fixture
def world() -> World:
    return World()


def fetching(world: World, **speeds: float) -> list[WorkerId]:
    """Idle workers of these speeds, none of which holds the published weights yet."""
    workers = [world.join(name, rows=16, weights=()) for name in speeds]
    for worker, speed in zip(workers, speeds.values(), strict=True):
        world.scheduler.holds(worker, (), [CURRENT])
        world.pull(worker, 16, speed)
    return workers


def arrives(world: World, worker: WorkerId) -> int:
    """Rows that the worker receives when it holds the weights."""
    world.scheduler.holds(worker, [CURRENT])
    return len(given_to(worker, world.assign()))


def test_slow_worker_that_holds_the_weights_first_leaves_the_others_their_shares(world):
    slow, fast, other = fetching(world, slow=1.0, fast=3.0, other=2.0)
    world.issue(*requests(18))
    assert [arrives(world, worker) for worker in (slow, fast, other)] == [3, 9, 6]


def test_share_of_a_worker_that_is_lost_before_it_holds_the_weights_goes_to_the_others(world):
    slow, fast = fetching(world, slow=1.0, fast=3.0)
    world.issue(*requests(8))
    assert arrives(world, slow) == 2
    world.pull(slow, 14, 1.0)
    assert world.assign() == []
    world.scheduler.lose(fast, ReleaseReason.LOST, world.now)
    assert len(given_to(slow, world.assign())) == 6


def test_row_left_over_waits_for_no_worker_that_still_fetches_if_a_worker_is_idle(world):
    slow, _ = fetching(world, slow=1.0, fast=9.0)
    world.issue(*requests(2))
    assert arrives(world, slow) == 1
    world.pull(slow, 15, 1.0)
    assert world.assign() == [], "a busy worker leaves the next row to the faster one"


def test_row_that_a_busy_worker_left_is_served_when_the_last_one_holds_the_weights(world):
    one, two = fetching(world, one=1.0, two=1.0)
    world.issue(*requests(5))
    assert arrives(world, one) == 2
    world.pull(one, 14, 1.0)
    world.scheduler.holds(two, [CURRENT])
    served = world.assign()
    assert [len(given_to(worker, served)) for worker in (one, two)] == [1, 2]


def test_workers_whose_measured_speeds_hardly_differ_have_equal_shares(world):
    workers = fetching(world, a=1.0, b=1.01, c=0.99, d=1.015, e=0.985)
    world.issue(*requests(20))
    assert [arrives(world, worker) for worker in workers] == [4] * 5
