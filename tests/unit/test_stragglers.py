"""The pull scheduler with slow workers: their requests are recalled at a step boundary and move with their commits."""

import pytest
from scheduled_world import EXACT, PREVIOUS, World, given_to, request, requests

from spotlight.core.work import NoticeKind, ReleaseReason, Work


@pytest.fixture
def world() -> World:
    return World()


def test_a_stragglers_request_is_recalled_once_and_moves_with_its_commit(world):
    slow, fast = world.join("slow"), world.join("fast")
    (wanted,) = world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    world.assign()
    (recalled,) = world.scheduler.recalls(world.now)
    assert (recalled.worker, recalled.requests) == (slow, (wanted,))
    world.now = 1.0
    assert world.scheduler.recalls(world.now) == []
    assert world.ledger.holder(wanted) == slow, "until it is handed back, it has one live attempt"
    assert world.hand_back(slow, wanted, step=1)
    world.pull(slow, 1, 1.0)
    (assignment,) = world.assign()
    assert (assignment.worker, assignment.leases[0].step) == (fast, 1)
    assert [each.reason for each in world.released()] == [ReleaseReason.RECALLED]


def test_a_request_that_would_hardly_finish_sooner_elsewhere_stays():
    world = World(EXACT.model_copy(update={"move_s": 5.0}))
    slow, fast = world.join("slow"), world.join("fast")
    world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    assert world.scheduler.recalls(world.now) == [], "10 s here; 5 s for the move and 1 s there, times 2"


def test_half_of_a_full_batch_moves_to_an_idle_worker_and_no_more(world):
    wanted = world.issue(*requests(8))
    busy, idle = world.join("busy"), world.join("idle")
    world.give(busy, 8, speed=1.0)
    world.pull(idle, 8, 1.0)
    (recalled,) = world.scheduler.recalls(world.now)
    assert set(recalled.requests) < set(wanted)
    assert 2 <= len(recalled.requests) <= 4


def test_previews_are_never_recalled(world):
    slow, fast = world.join("slow"), world.join("fast")
    world.issue(request(0, work=Work.PREVIEW))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 100.0)
    assert world.scheduler.recalls(world.now) == []


def test_nothing_is_recalled_for_a_worker_without_the_weights_or_under_notice(world):
    slow, other = world.join("slow"), world.join("other", weights=[PREVIOUS])
    warned = world.join("warned")
    world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.scheduler.warn(warned, NoticeKind.ADVISORY, 100.0, world.now)
    for worker in (other, warned):
        world.pull(worker, 8, 100.0)
    assert world.scheduler.recalls(world.now) == []


def test_nothing_is_recalled_while_work_waits_that_the_idle_could_take(world):
    slow, fast = world.join("slow", rows=1), world.join("fast", rows=1)
    world.issue(*requests(2))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 1, 100.0)
    assert world.scheduler.recalls(world.now) == []


def test_a_worker_that_makes_no_progress_is_a_straggler_whatever_speed_it_reported(world):
    stuck, slow = world.join("stuck"), world.join("slow")
    (wanted,) = world.issue(request(0))
    world.give(stuck, 1, speed=100.0)
    world.pull(slow, 8, 1.0)
    assert world.scheduler.recalls(world.now) == []
    world.now = 8.0
    world.progress(stuck, 0)
    assert [each.requests for each in world.scheduler.recalls(world.now)] == [(wanted,)]


def test_nothing_is_recalled_to_be_given_to_the_same_worker(world):
    stuck = world.join("stuck")
    world.issue(request(0))
    world.give(stuck, 1, speed=1.0)
    world.now = 60.0
    world.progress(stuck, 0)
    world.pull(stuck, 7, 1.0)
    assert world.scheduler.recalls(world.now) == []


def test_a_worker_that_ignores_a_recall_counts_as_silent_despite_its_heartbeats(world):
    slow, fast = world.join("slow"), world.join("fast")
    (wanted,) = world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    assert world.scheduler.recalls(world.now)
    for world.now in (3.0, 6.0, 9.0, 10.9):
        world.progress(slow, 1)
        world.progress(fast, 0)
        assert world.scheduler.silent(world.now) == []
    world.now = 11.5
    assert world.scheduler.silent(world.now) == [slow]
    world.lose(slow, ReleaseReason.SILENT)
    assert given_to(fast, world.assign()) == [wanted]


def test_a_recall_that_waited_for_a_broken_connection_has_its_whole_time_after_it(world):
    slow, fast = world.join("slow"), world.join("fast")
    world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    assert world.scheduler.recalls(world.now)
    for world.now in (3.0, 6.0, 9.0):
        world.scheduler.excuse(slow, world.now)
        world.progress(fast, 0)
    named = []
    for world.now in (11.5, 14.0, 17.0, 19.5):
        world.progress(slow, 1)
        world.progress(fast, 0)
        named.append(world.scheduler.silent(world.now))
    assert named == [[], [], [], [slow]]


def test_a_recalled_request_whose_result_is_being_scored_does_not_make_its_worker_silent(world):
    slow, fast = world.join("slow"), world.join("fast")
    (wanted,) = world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    assert world.scheduler.recalls(world.now)
    for world.now in range(1, 60):
        world.progress(slow, 0, only=[])
        world.progress(fast, 0)
        assert world.scheduler.silent(world.now) == []
    assert world.finish(slow, wanted) is None


def test_a_result_that_is_long_in_scoring_is_no_stalled_attempt(world):
    busy, idle = world.join("busy"), world.join("idle")
    world.issue(request(0))
    world.give(busy, 1, speed=1.0)
    world.now = 1.0
    world.progress(busy, 9)
    world.pull(idle, 8, 1.0)
    for world.now in range(2, 60):
        world.progress(busy, 0, only=[])
        assert world.scheduler.recalls(world.now) == []


def test_a_recalled_request_that_finished_first_needs_no_further_action(world):
    slow, fast = world.join("slow"), world.join("fast")
    (wanted,) = world.issue(request(0))
    world.give(slow, 1, speed=1.0)
    world.pull(fast, 8, 10.0)
    world.scheduler.recalls(world.now)
    assert world.finish(slow, wanted) is None
    world.now = 60.0
    for worker in (slow, fast):
        world.progress(worker, 0)
    assert world.scheduler.silent(world.now) == []
    assert world.assign() == []
