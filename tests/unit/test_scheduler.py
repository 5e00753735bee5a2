"""The pull scheduler: which worker is given what, and the requests' further course."""

import pytest
from scheduled_world import CURRENT, EXACT, PREVIOUS, Engines, World, given_to, request, requests

from spotlight.control.ledger import InvariantBroken, Ledger, SampleState
from spotlight.control.scheduler import Scheduler
from spotlight.core.messages import Pull
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Policy, RequestId, SlotClass, WeightsId, Work


@pytest.fixture
def world() -> World:
    return World()


# -- order of service --------------------------------------------------------------------------------------------------


def test_one_worker_is_served_rollouts_audits_evaluation_previews_in_that_order(world):
    average = WeightsId(CURRENT.version, Policy.AVERAGE)
    kinds = [Work.PREVIEW, Work.EVALUATION, Work.AUDIT, Work.ROLLOUT]
    for work in kinds:
        world.issue(request(0, work=work))
    worker = world.join("a", weights=[CURRENT, average])
    served = []
    while given := world.give(worker, 1):
        served += given
        world.finish(worker, given[0])
    assert [each.split("/")[0] for each in served] == ["rollout", "audit", "evaluation", "preview"]


def test_rollouts_are_served_group_by_group_however_they_were_added(world):
    later = world.issue(*requests(2, group=0, iteration=1))
    second, first = world.issue(*requests(2, group=1)), world.issue(*requests(2, group=0))
    assert world.give(world.join("a")) == first + second + later


def test_audits_that_advantages_wait_for_are_served_after_the_rollouts_of_their_group():
    world = World(EXACT.model_copy(update={"audits_with_groups": True}))
    second, first = world.issue(*requests(2, group=1)), world.issue(*requests(2, group=0))
    audits = [world.issue(request(9, group=group, work=Work.AUDIT)) for group in (1, 0)]
    worker = world.join("a")
    served = []
    while given := world.give(worker, 1):
        served += given
        world.finish(worker, given[0])
    assert served == [*first, *audits[1], *second, *audits[0]]
    assert not any(world.scheduler.unfinished(work) for work in Work)


def test_previews_are_served_in_the_order_of_issue_so_that_every_group_gets_some(world):
    """Training may end at any time; group by group, the last groups would have had none."""
    issued = [
        *world.issue(request(0, group=0, work=Work.PREVIEW)),
        *world.issue(request(0, group=1, work=Work.PREVIEW)),
        *world.issue(request(1, group=0, work=Work.PREVIEW)),
        *world.issue(request(1, group=1, work=Work.PREVIEW)),
    ]
    assert world.give(world.join("a")) == issued


def test_handed_back_work_is_served_before_everything_else_of_its_class(world):
    first, second = world.issue(*requests(2, iteration=1))
    a, b = world.join("a"), world.join("b")
    assert world.give(a, 2, speed=1.0) == [first, second]
    (earlier,) = world.issue(request(0, iteration=0))
    assert world.hand_back(a, second, step=4)
    world.pull(b, 8, 1.0)
    assignment = world.assign()[0]
    assert [(lease.request.id, lease.step, lease.attempt) for lease in assignment.leases] == [
        (second, 4, 2),
        (earlier, 0, 1),
    ]


def test_previews_wait_while_a_rollout_is_queued_even_for_a_worker_that_is_refused_it(world):
    fast, slow = world.join("fast", rows=1), world.join("slow", rows=1)
    rollouts = world.issue(*requests(2))
    previews = world.issue(*requests(1, work=Work.PREVIEW, steps=1))
    assert world.give(fast, 1, speed=10.0) == rollouts[:1]
    assert world.give(slow, 1, speed=1.0) == [], "the second rollout is the fast one's, and the preview comes after it"
    world.now = 1.0
    world.finish(fast, rollouts[0])
    assert world.give(fast, 1, speed=10.0) == rollouts[1:]
    world.progress(slow, 0)
    assert given_to(slow, world.assign()) == previews


def test_a_worker_is_given_nothing_for_weights_that_it_does_not_hold(world):
    (wanted,) = world.issue(request(0))
    worker = world.join("a", weights=[PREVIOUS])
    assert world.give(worker) == []
    world.scheduler.holds(worker, [CURRENT, PREVIOUS])
    assert given_to(worker, world.assign()) == [wanted]


def test_a_worker_that_dropped_weights_is_given_nothing_for_them(world):
    worker = world.join("a", weights=[CURRENT])
    world.scheduler.holds(worker, [PREVIOUS])
    world.issue(request(0))
    assert world.give(worker) == []


def test_a_worker_with_two_versions_is_given_each_in_an_assignment_of_its_own(world):
    older, newer = requests(2, iteration=0), requests(2, iteration=1, version=PREVIOUS.version)
    world.issue(*newer, *older)
    worker = world.join("a", weights=[PREVIOUS, CURRENT])
    world.pull(worker, 8)
    assignments = world.assign()
    assert [each.weights for each in assignments] == [CURRENT, PREVIOUS], "the older iteration's first"
    for assignment in assignments:
        assert {lease.request.weights for lease in assignment.leases} == {assignment.weights}
        assert len(assignment.leases) == 2


def test_a_worker_that_found_nothing_for_its_weights_is_served_when_such_work_comes_back(world):
    (wanted,) = world.issue(request(0))
    world.issue(request(1, version=PREVIOUS.version))
    a, b = world.join("a"), world.join("b")
    world.give(a, 1, speed=1.0)
    assert world.give(b, 1, speed=1.0) == []
    world.hand_back(a, wanted, step=2)
    assert given_to(b, world.assign()) == [wanted]


# -- shares by speed ---------------------------------------------------------------------------------------------------


def test_shares_follow_measured_speed(world):
    world.issue(*requests(8))
    fast, slow = world.join("fast"), world.join("slow")
    world.pull(slow, 8, 1.0)
    world.pull(fast, 8, 3.0)
    assignments = world.assign()
    assert len(given_to(fast, assignments)) == 6
    assert len(given_to(slow, assignments)) == 2


def test_work_that_does_not_divide_evenly_is_still_all_given_out(world):
    world.issue(*requests(5))
    for name in "abc":
        world.pull(world.join(name), 8, 1.0)
    assert sorted(len(each.leases) for each in world.assign()) == [1, 2, 2]


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [9, 40, 64, 101])
def test_a_worker_three_times_as_fast_finishes_within_one_row_of_the_slow_one(world, rows, count):
    world.issue(*requests(count))
    fast, slow = world.join("fast", rows), world.join("slow", rows)
    engines = Engines(world, {fast: 3.0, slow: 1.0}, rows)
    engines.run()
    assert world.count(SampleState.ACCEPTED) == count
    one_row_s = 10 / 1.0
    # A worker's progress is known at its step boundaries only.
    one_step_s = (rows - 1) / 1.0
    assert abs(engines.ended[fast] - engines.ended[slow]) <= one_row_s + one_step_s
    assert max(engines.ended.values()) <= count * 10 / 4.0 + one_row_s


def test_a_slow_worker_is_not_given_the_last_row_that_a_faster_one_finishes_sooner(world):
    fast, slow = world.join("fast", rows=1), world.join("slow", rows=1)
    world.issue(*requests(2))
    assert len(world.give(fast, 1, speed=10.0)) == 1
    world.progress(fast, 5)
    assert world.give(slow, 1, speed=1.0) == []
    world.now = 0.5
    world.finish(fast, world.ledger.leases_of(fast)[0])
    assert len(world.give(fast, 1, speed=10.0)) == 1


def test_the_last_row_is_not_left_to_a_worker_that_would_begin_it_later():
    """With up to four rows a step takes one second: ten steps, whichever worker begins them."""
    world = World(EXACT.model_copy(update={"saturating_rows": 4}))
    busy, free = world.join("busy", rows=4), world.join("free", rows=4)
    world.issue(*requests(4))
    for each in world.give(busy, 4, speed=4.0):
        world.commit(busy, each, 9)
    last = world.issue(*requests(4, group=1))
    taken = world.give(free, 4, speed=4.0)
    assert taken == last[:3]
    assert world.give(free, 1, speed=4.0) == last[3:], "the other is busy for another second"


@pytest.mark.parametrize(
    ("measured", "taken"), [(None, 2), (2, 2), (1, 1), (1.5, 1), (0.1, 1), (1000, 2), (float("nan"), 2)]
)
def test_the_last_row_is_left_to_another_worker_if_a_second_row_is_measured_to_take_longer(measured, taken):
    """Before it is measured, a step of two rows counts as no longer than one of one row."""
    world = World(EXACT.model_copy(update={"saturating_rows": 4}))
    busy, free = [world.join("busy", rows=2), world.join("busy too", rows=2)], world.join("free", rows=2)
    world.issue(*requests(4))
    for each in busy:
        for held in world.give(each, 2, speed=2.0):
            world.commit(each, held, 9)
    last = world.issue(*requests(2, group=1))
    found: list[RequestId] = []
    for rows in (2, 1):
        world.pull(free, rows, 2.0, measured)
        found += given_to(free, world.assign())
    assert found == last[:taken], "the others are free after one second, and the row takes five"


def test_a_row_fits_before_the_deadline_if_few_rows_are_measured_to_be_quick():
    world = World(EXACT.model_copy(update={"saturating_rows": 4}))
    worker = world.join("a", rows=4)
    world.issue(request(0))
    world.scheduler.warn(worker, NoticeKind.IMMINENT, 15.0, world.now)
    assert world.give(worker, 1, speed=1.0) == [], "40 row-steps as assumed"
    world.pull(worker, 1, 1.0, saturating=1.6)
    assert given_to(worker, world.assign()) == [], "its step takes as long as 1.6 rows: 16 s"
    world.pull(worker, 1, 1.0, saturating=1)
    assert len(given_to(worker, world.assign())) == 1


def test_a_refused_worker_gets_the_row_once_the_faster_one_is_later_than_predicted(world):
    fast, slow = world.join("fast", rows=1), world.join("slow", rows=1)
    world.issue(*requests(2))
    world.give(fast, 1, speed=10.0)
    assert world.give(slow, 1, speed=1.0) == []
    world.now = 2.0
    world.progress(fast, 1)
    world.progress(slow, 0)
    assert world.assign() == [], "20 row-steps at a speed of 11, and a row of the fast one's: not before 2.8 s"
    world.now = 3.0
    world.progress(slow, 0)
    assert len(given_to(slow, world.assign())) == 1


def test_a_refused_worker_gets_the_row_when_the_faster_one_is_lost(world):
    fast, slow = world.join("fast", rows=1), world.join("slow", rows=1)
    world.issue(*requests(2))
    (held,) = world.give(fast, 1, speed=10.0)
    assert world.give(slow, 1, speed=1.0) == []
    world.lose(fast)
    assert given_to(slow, world.assign()) == [held]


def test_a_fast_worker_that_neither_pulls_nor_works_delays_no_other_worker(world):
    world.give(world.join("trainer"), 0, speed=100.0)
    slow = world.join("slow")
    world.issue(request(0))
    assert len(world.give(slow, 1, speed=1.0)) == 1


def test_speed_of_a_worker_that_withdrew_its_pull_does_not_limit_the_others(world):
    trainer = world.join("trainer")
    world.pull(trainer, 8, 100.0)
    world.pull(trainer, 0, 100.0)
    for name in ("a", "b"):
        world.pull(world.join(name), 1, 1.0)
    world.issue(request(0))
    assert len(world.assign()) == 1


def test_an_unmeasured_worker_counts_as_the_median_of_the_measured(world):
    for name, speed in (("a", 2.0), ("b", 4.0), ("c", 30.0)):
        world.pull(world.join(name), 1, speed)
    newcomer = world.join("new")
    assert world.scheduler.speed(newcomer) == 1.0
    world.pull(newcomer, 1, None)
    assert world.scheduler.speed(newcomer) == 4.0


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_speed_counts_as_unmeasured(world, nonsense):
    worker = world.join("a")
    world.pull(worker, 1, 5.0)
    world.pull(worker, 1, nonsense)
    assert world.scheduler.speed(worker) == 5.0


# -- work comes and goes -----------------------------------------------------------------------------------------------


def test_cancelled_previews_are_dropped_and_their_holders_are_returned(world):
    previews = world.issue(*requests(3, work=Work.PREVIEW))
    (rollout,) = world.issue(request(9, version=PREVIOUS.version))
    a, b = world.join("a"), world.join("b", weights=[PREVIOUS])
    assert world.give(a, 2) == previews[:2]
    world.give(b)
    assert world.scheduler.cancel(Work.PREVIEW) == [a]
    assert world.scheduler.waiting(Work.PREVIEW) == 0
    assert world.give(a) == []
    assert world.lose(a) == []
    assert world.lose(b) == [rollout]


def test_a_dropped_request_is_not_served_and_its_holder_is_named(world):
    first, second, third = world.issue(*requests(3))
    worker = world.join("a")
    world.give(worker, 1)
    assert world.scheduler.drop(first, "failed") == worker
    assert world.scheduler.drop(second, "failed") is None
    assert world.give(worker) == [third]


def test_a_reopened_request_is_served_again(world):
    wanted = request(0)
    (name,) = world.issue(wanted)
    worker = world.join("a")
    world.give(worker)
    world.finish(worker, name)
    world.ledger.reopen(name, "its file is damaged")
    world.scheduler.add([wanted])
    assert world.give(worker) == [name]


def test_a_request_is_scheduled_once(world):
    wanted = request(0)
    world.issue(wanted)
    with pytest.raises(InvariantBroken, match="scheduled already"):
        world.scheduler.add([wanted])


def test_waiting_counts_requests_without_a_holder(world):
    world.issue(*requests(3), request(0, work=Work.PREVIEW))
    world.give(world.join("a"), 2)
    assert world.scheduler.waiting(Work.ROLLOUT) == 1
    assert world.scheduler.waiting(Work.PREVIEW) == 1


def test_steps_under_way_are_those_that_live_attempts_of_a_kind_have_reported(world):
    world.issue(*requests(3, work=Work.PREVIEW, steps=6), request(9))
    a, b = world.join("a"), world.join("b")
    world.give(a, 3)
    world.give(b, 3)
    for worker, step in ((a, 4), (b, 2)):
        world.progress(worker, step)
    held = {worker: len(world.ledger.leases_of(worker)) for worker in (a, b)}
    expected = 4 * held[a] + 2 * held[b]
    assert world.scheduler.steps_under_way(Work.PREVIEW) + world.scheduler.steps_under_way(Work.ROLLOUT) == expected
    world.scheduler.cancel(Work.PREVIEW)
    assert world.scheduler.steps_under_way(Work.PREVIEW) == 0


def test_groups_are_served_in_the_order_in_which_they_are_needed():
    ledger = Ledger()
    scheduler = Scheduler(ledger, EXACT, group_order=lambda wanted: -wanted.group)
    wanted = [request(seed, group) for group in range(3) for seed in (2 * group, 2 * group + 1)]
    ledger.issue(wanted)
    scheduler.add(wanted)
    worker = WorkerId("w")
    scheduler.join(worker, SlotClass.SPOT, 8, 0.0)
    scheduler.holds(worker, [CURRENT])
    scheduler.pull(worker, Pull(free_rows=8, row_steps_per_s=1.0), 0.0)
    (assignment,) = scheduler.assign(0.0)
    assert [lease.request.group for lease in assignment.leases] == [2, 2, 1, 1, 0, 0]
