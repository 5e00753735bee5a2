"""The pull scheduler when workers are lost, silent, warned or slow."""

from math import inf

import pytest
from scheduled_world import World, given_to, request, requests

from spotlight.control.scheduler import SchedulerSettings
from spotlight.core.work import NoticeKind, RefusalReason, ReleaseReason, Work


@pytest.fixture
def world() -> World:
    return World()


# -- loss, silence, fences ---------------------------------------------------------------------------------------------


def test_a_lost_workers_requests_go_on_from_their_last_commit(world):
    first, second = world.issue(*requests(2))
    a, b = world.join("a"), world.join("b")
    world.give(a)
    assert world.commit(a, first, step=4)
    world.progress(a, 6)
    assert world.lose(a) == [first, second]
    world.pull(b, 8)
    assert [(lease.request.id, lease.step) for lease in world.assign()[0].leases] == [(first, 4), (second, 0)]
    assert [(each.reason, each.step, each.redone) for each in world.released()] == [
        (ReleaseReason.LOST, 4, 2),
        (ReleaseReason.LOST, 0, 6),
    ]


def test_a_silent_worker_is_named_and_fenced_and_its_late_messages_are_refused(world):
    (wanted,) = world.issue(request(0))
    mute, other = world.join("mute"), world.join("other")
    world.give(mute)
    world.now = 9.0
    world.progress(other, 0)
    assert world.scheduler.silent(9.9) == []
    world.now = 10.0
    assert world.scheduler.silent(world.now) == [mute]
    world.lose(mute, ReleaseReason.SILENT)
    assert world.give(other) == [wanted]
    assert not world.scheduler.committed(mute, wanted, 1, 8, world.now)
    assert not world.scheduler.hand_back(mute, wanted, 1, 8, world.now)
    assert world.finish(mute, wanted, attempt=1) is RefusalReason.FENCED
    assert world.ledger.holder(wanted) == other
    assert world.finish(other, wanted) is None


def test_any_message_of_a_worker_counts_as_a_sign_of_life(world):
    worker = world.join("a")
    for _ in range(5):
        world.now += 9.0
        world.pull(worker, 8)
        assert world.scheduler.silent(world.now) == []


def test_a_silent_worker_is_named_again_if_it_is_not_lost(world):
    worker = world.join("a")
    assert world.scheduler.silent(15.0) == [worker]
    assert world.scheduler.silent(16.0) == []
    assert world.scheduler.silent(30.0) == [worker]


def test_a_worker_that_comes_back_under_its_name_does_not_own_its_old_leases(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker)
    world.lose(worker, ReleaseReason.SILENT)
    world.join("a")
    assert world.give(worker) == [wanted]
    assert not world.scheduler.committed(worker, wanted, 1, 5, world.now)
    assert world.finish(worker, wanted, attempt=1) is RefusalReason.FENCED
    assert world.scheduler.committed(worker, wanted, 2, 5, world.now)
    assert world.finish(worker, wanted, attempt=2) is None


def test_a_message_about_another_workers_attempt_is_refused(world):
    (wanted,) = world.issue(request(0))
    holder, other = world.join("holder"), world.join("other")
    world.give(holder)
    assert not world.commit(other, wanted, step=5)
    assert not world.hand_back(other, wanted, step=5)
    assert world.lose(holder) == [wanted]
    assert [each.step for each in world.released()] == [0]


def test_a_duplicate_result_changes_nothing(world):
    wanted = world.issue(*requests(2))
    worker = world.join("a")
    world.give(worker)
    assert world.finish(worker, wanted[0]) is None
    assert world.finish(worker, wanted[0], attempt=1) is RefusalReason.DUPLICATE
    assert world.lose(worker) == [wanted[1]]


def test_a_result_of_wrong_weights_starts_over_from_nothing(world):
    (wanted,) = world.issue(request(0))
    a, b = world.join("a"), world.join("b")
    world.give(a)
    world.commit(a, wanted, step=8)
    assert world.finish(a, wanted, digest="other weights") is RefusalReason.WRONG_WEIGHTS
    world.pull(b, 1)
    assert [(lease.request.id, lease.step) for lease in world.assign()[0].leases] == [(wanted, 0)]


def test_a_failed_attempt_starts_over_whatever_it_committed(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker)
    world.commit(worker, wanted, step=8)
    assert world.scheduler.hand_back(worker, wanted, 1, 0, world.now, ReleaseReason.FAILED)
    world.pull(worker, 1)
    assert world.assign()[0].leases[0].step == 0
    assert [(each.reason, each.redone) for each in world.released()] == [(ReleaseReason.FAILED, 8)]


def test_a_hand_back_without_a_flight_goes_on_from_the_earlier_commit(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker)
    world.commit(worker, wanted, step=4)
    world.progress(worker, 6)
    world.hand_back(worker, wanted, step=0)
    world.pull(worker, 1)
    assert world.assign()[0].leases[0].step == 4
    assert [(each.step, each.redone) for each in world.released()] == [(4, 2)]


# -- notices -----------------------------------------------------------------------------------------------------------


def test_under_an_imminent_notice_what_fits_goes_on_and_the_rest_is_to_be_handed_back(world):
    near, far = world.issue(*requests(2))
    worker = world.join("a")
    world.give(worker, 8, speed=1.0)
    world.progress(worker, 8, [near])
    world.progress(worker, 1, [far])
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 10.0, world.now)
    assert world.scheduler.must_hand_back(worker, world.now) == [far]
    assert world.hand_back(worker, far, step=1)
    assert world.scheduler.must_hand_back(worker, world.now) == []
    assert [(each.reason, each.redone) for each in world.released()] == [(ReleaseReason.HANDED_BACK, 0)]


def test_margin_and_commit_time_are_taken_off_the_notice():
    world = World(SchedulerSettings(saturating_rows=1, deadline_margin=0.5, commit_s=2.0))
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker, 1, speed=1.0)
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 17.1, world.now)
    assert world.scheduler.must_hand_back(worker, 0.0) == []
    assert world.scheduler.must_hand_back(worker, 0.2) == [wanted]


def test_one_row_takes_as_long_as_the_saturating_batch_under_notice():
    world = World(SchedulerSettings(saturating_rows=4, deadline_margin=0.0, commit_s=0.0))
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker, 1, speed=1.0)
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 39.0, world.now)
    assert world.scheduler.must_hand_back(worker, 0.0) == [wanted]


def test_a_leaving_worker_is_given_only_what_it_finishes_before_the_deadline(world):
    world.issue(*requests(3))
    worker = world.join("a")
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 25.0, world.now)
    assert len(world.give(worker, 8, speed=1.0)) == 2
    assert world.scheduler.must_hand_back(worker, world.now) == []
    world.now = 20.0
    assert world.give(worker, 8, speed=1.0) == []


def test_under_an_advisory_notice_previews_only(world):
    rollout, preview = world.issue(request(0), request(0, work=Work.PREVIEW))
    worker, other = world.join("a"), world.join("b")
    world.scheduler.warn(worker, NoticeKind.ADVISORY, 60.0, world.now)
    assert world.give(worker) == [preview]
    assert world.scheduler.must_hand_back(worker, world.now) == []
    assert world.give(other) == [rollout]


def test_the_last_notice_counts_whether_it_is_nearer_or_later(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker, 1, speed=1.0)
    late = []
    for deadline in (50.0, 5.0, 60.0):
        world.scheduler.warn(worker, NoticeKind.IMMINENT, deadline, world.now)
        late.append(world.scheduler.must_hand_back(worker, world.now))
    assert late == [[], [wanted], []]


def test_an_advisory_notice_that_replaces_an_imminent_one_leaves_previews_and_no_deadline(world):
    rollout, preview = world.issue(request(0), request(0, work=Work.PREVIEW))
    worker = world.join("a")
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 5.0, world.now)
    assert world.give(worker, 2, speed=1.0) == []
    world.scheduler.warn(worker, NoticeKind.ADVISORY, inf, world.now)
    assert given_to(worker, world.assign()) == [preview]
    assert world.give(world.join("b")) == [rollout]


@pytest.mark.parametrize("kind", list(NoticeKind))
def test_a_worker_whose_notice_is_withdrawn_serves_again_without_another_pull(world, kind):
    first, second = world.issue(*requests(2))
    worker = world.join("a")
    world.scheduler.warn(worker, kind, 1.0, world.now)
    assert world.give(worker, 2, speed=1.0) == []
    world.scheduler.warn(worker, None, inf, world.now)
    assert world.scheduler.serves(worker)
    assert given_to(worker, world.assign()) == [first, second]
    world.now = 5.0
    assert world.scheduler.must_hand_back(worker, world.now) == []


def test_a_withdrawn_notice_ends_no_drain(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a")
    world.give(worker, 1)
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 100.0, world.now)
    world.scheduler.drain(worker)
    world.scheduler.warn(worker, None, inf, world.now)
    assert world.scheduler.must_hand_back(worker, world.now) == [wanted]


def test_a_draining_worker_is_given_nothing_and_hands_everything_back(world):
    first, second = world.issue(*requests(2))
    worker = world.join("a")
    world.give(worker, 1)
    world.scheduler.drain(worker)
    assert world.give(worker, 1) == []
    assert world.scheduler.must_hand_back(worker, world.now) == [first]
    assert world.give(world.join("b"), 1) == [second]


def test_a_warned_worker_has_no_share_of_what_the_others_do(world):
    leaving, slow = world.join("leaving", rows=1), world.join("slow", rows=1)
    world.issue(*requests(2))
    world.give(leaving, 1, speed=10.0)
    assert world.give(slow, 1, speed=1.0) == []
    world.scheduler.warn(leaving, NoticeKind.IMMINENT, 100.0, world.now)
    assert len(given_to(slow, world.assign())) == 1


def test_a_leaving_worker_that_was_too_late_for_long_work_is_given_short_work_that_comes_back(world):
    leaving, busy = world.join("leaving"), world.join("busy")
    (short,) = world.issue(request(0, steps=20))
    assert world.give(busy, 1, speed=1.0) == [short]
    long = world.issue(*requests(3, group=1, steps=20))
    world.scheduler.warn(leaving, NoticeKind.IMMINENT, world.now + 5, world.now)
    assert world.give(leaving, 1, speed=1.0) == [], "20 steps do not fit into 5 seconds"
    world.hand_back(busy, short, step=18)
    world.scheduler.heartbeat(leaving, [], world.now)
    assert given_to(leaving, world.assign()) == [short], "2 steps do"
    assert set(long).isdisjoint(world.ledger.leases_of(leaving))


def test_a_leaving_worker_that_was_too_late_stays_so_when_nothing_short_comes_back(world):
    leaving, busy = world.join("leaving"), world.join("busy")
    (own,) = world.issue(request(0, steps=20))
    assert world.give(busy, 1, speed=1.0) == [own]
    world.issue(*requests(3, group=1, steps=20))
    world.scheduler.warn(leaving, NoticeKind.IMMINENT, world.now + 5, world.now)
    assert world.give(leaving, 1, speed=1.0) == []
    world.hand_back(busy, own, step=4)
    world.scheduler.heartbeat(leaving, [], world.now)
    assert given_to(leaving, world.assign()) == []


def test_unfinished_counts_what_waits_and_what_is_held_by_kind(world):
    first, second = world.issue(*requests(2))
    world.issue(request(0, work=Work.EVALUATION))
    worker = world.join("a", rows=1)
    world.give(worker, 1)
    assert (world.scheduler.unfinished(Work.ROLLOUT), world.scheduler.unfinished(Work.EVALUATION)) == (2, 1)
    world.finish(worker, first)
    assert (world.scheduler.unfinished(Work.ROLLOUT), world.scheduler.waiting(Work.ROLLOUT)) == (1, 1)
    assert second in world.ledger
