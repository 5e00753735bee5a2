"""Stories of workers that fetch weights while others hold them already."""

import pytest
from scheduled_world import CURRENT, PREVIOUS, World, given_to, request, requests

from spotlight.control.scheduler.coming import Coming
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind

A, B = WorkerId("a"), WorkerId("b")


def first_holds_and_second_fetches(ready_at: float, given_up_at: float = 100.0) -> tuple[World, WorkerId, WorkerId]:
    """Both ask, one row-step per second each."""
    world = World()
    first, second = world.join("first"), world.join("second", weights=())
    world.pull(second, 8, speed=1.0)
    world.scheduler.expect(CURRENT, [(second, ready_at, given_up_at)])
    return world, first, second


def test_who_holds_weights_a_moment_earlier_leaves_the_other_its_half():
    world, first, second = first_holds_and_second_fetches(ready_at=0.0)
    wanted = world.issue(*requests(8))
    taken = world.give(first, speed=1.0)
    assert taken == wanted[:5], "its half, and the row that any round gives beyond"
    world.scheduler.holds(second, [CURRENT])
    assert given_to(second, world.assign()) == wanted[5:]


def test_who_comes_later_is_left_less():
    world, first, second = first_holds_and_second_fetches(ready_at=20.0)
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 6
    world.now = 20.0
    world.scheduler.holds(second, [CURRENT])
    assert len(given_to(second, world.assign())) == 2


def test_who_comes_after_everything_would_be_done_is_left_nothing():
    world, first, _ = first_holds_and_second_fetches(ready_at=90.0)
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8


def test_share_of_one_that_does_not_come_in_time_goes_to_who_is_there():
    world, first, _ = first_holds_and_second_fetches(ready_at=1.0, given_up_at=2.0)
    world.issue(*requests(8))
    begun = world.give(first, speed=1.0)
    world.now = 3.0
    assert len(begun) + len(world.give(first, 8 - len(begun), speed=1.0)) == 8


def test_share_of_one_that_is_lost_or_warned_goes_to_who_is_there():
    world, first, second = first_holds_and_second_fetches(ready_at=1.0)
    world.scheduler.warn(second, NoticeKind.IMMINENT, deadline=5.0, now=0.0)
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8
    world, first, second = first_holds_and_second_fetches(ready_at=1.0)
    world.lose(second)
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8


def test_one_that_does_not_ask_is_left_nothing():
    world = World()
    first, second = world.join("first"), world.join("second", weights=())
    world.scheduler.expect(CURRENT, [(second, 0.0, 100.0)])
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8


def test_level_counts_everybody_from_when_it_comes():
    coming = Coming()
    assert coming.level_s(60.0, speed=1.0, now=4.0) == 60.0
    coming.expect(A, speed=2.0, ready_at=10.0, given_up_at=15.0)
    coming.expect(B, speed=3.0, ready_at=20.0, given_up_at=30.0)
    assert coming.level_s(60.0, speed=1.0, now=4.0) == pytest.approx((60 + 2 * 6 + 3 * 16) / 6)
    assert coming.level_s(60.0, speed=1.0, now=12.0) == pytest.approx((60 + 3 * 8) / 6)
    assert coming.level_s(60.0, speed=1.0, now=15.0) == pytest.approx((60 + 3 * 5) / 4)
    coming.forget(B)
    assert coming.level_s(60.0, speed=1.0, now=16.0) == 60.0
    assert not coming


def test_who_is_expected_again_counts_once():
    coming = Coming()
    coming.expect(A, speed=1.0, ready_at=20.0, given_up_at=40.0)
    coming.expect(A, speed=4.0, ready_at=30.0, given_up_at=40.0)
    assert coming.level_s(60.0, speed=1.0, now=25.0) == pytest.approx((60 + 4 * 5) / 5)


def test_who_comes_far_too_late_does_not_take_the_share_of_who_comes_soon():
    coming = Coming()
    coming.expect(A, speed=1.0, ready_at=1.0, given_up_at=50.0)
    soon = coming.level_s(8.0, speed=1.0, now=0.0)
    coming.expect(B, speed=8.0, ready_at=400.0, given_up_at=600.0)
    assert coming.level_s(8.0, speed=1.0, now=0.0) == soon == pytest.approx(4.5)


def test_one_that_only_helps_leaves_as_much_as_anybody_to_who_fetches():
    for helps, takes_all, taken in ((False, False, 5), (True, False, 5), (True, True, 8)):
        world, first, _ = first_holds_and_second_fetches(ready_at=1.0)
        world.issue(*requests(8))
        world.scheduler.pull(first, 8, 1.0, world.now, helps=helps, takes_all=takes_all)
        assert len(given_to(first, world.assign())) == taken, "all only if it rolls out until the other comes"


def test_one_that_asks_no_more_or_works_on_something_else_is_left_nothing():
    world, first, second = first_holds_and_second_fetches(ready_at=1.0)
    world.pull(second, 0)
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8
    world = World()
    first, second = world.join("first"), world.join("second", weights=(PREVIOUS,))
    world.pull(second, 8, speed=1.0)
    world.scheduler.expect(CURRENT, [(second, 1.0, 100.0)])
    (other,) = world.issue(request(99, version=PREVIOUS.version))
    assert given_to(second, world.assign()) == [other]
    world.issue(*requests(8))
    assert len(world.give(first, speed=1.0)) == 8
