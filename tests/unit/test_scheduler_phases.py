"""Stories of slots that begin their rows in phases, eight rows of ten steps at one row-step per second each."""

from scheduled_world import EXACT, World, given_to, request, requests

from spotlight.core.work import NoticeKind, Work

IN_TWO = EXACT.model_copy(update={"phases": 2})


def test_slot_begins_half_of_its_rows_and_the_rest_when_these_are_half_way_through_a_phase():
    world = World(IN_TWO)
    worker = world.join("worker")
    wanted = world.issue(*requests(16))
    first = world.give(worker, speed=8.0)
    assert first == wanted[:4]
    assert world.give(worker, 4, speed=8.0) == []
    for each in first:
        world.commit(worker, each, 2)
    assert given_to(worker, world.assign()) == []
    for each in first:
        world.commit(worker, each, 3)
    assert given_to(worker, world.assign()) == wanted[4:8]


def test_rows_with_previews_keep_no_rollout_waiting():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*(request(seed, work=Work.PREVIEW) for seed in range(4)))
    assert len(world.give(worker, 8, speed=8.0)) == 4
    wanted = world.issue(*requests(16))
    assert world.give(worker, 4, speed=8.0) == wanted[:4]


def test_worker_that_leaves_begins_all_that_it_has_time_for_at_once():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*requests(16))
    world.scheduler.warn(worker, NoticeKind.IMMINENT, world.now + 60.0, world.now)
    assert len(world.give(worker, speed=8.0)) == 8


def test_time_that_the_next_batch_would_take_is_the_same_whatever_has_begun():
    world, paced = World(EXACT), World(IN_TWO)
    for each in (world, paced):
        worker = each.join("worker")
        each.issue(*requests(16))
        each.give(worker, 4, speed=8.0)
    assert paced.scheduler.next_s(worker, paced.now) == world.scheduler.next_s(worker, world.now) > 0


def test_rows_that_end_are_followed_by_others_at_once_so_that_phases_stay_apart():
    world = World(IN_TWO)
    worker = world.join("worker")
    wanted = world.issue(*requests(16))
    first = world.give(worker, speed=8.0)
    world.pull(worker, 4, speed=8.0)
    for each in first:
        world.commit(worker, each, 5)
    second = given_to(worker, world.assign())
    for each in second:
        world.commit(worker, each, 5)
    for each in first:
        world.finish(worker, each)
    assert world.give(worker, 4, speed=8.0) == wanted[8:12]


def test_progress_between_two_words_of_a_worker_counts():
    world = World(IN_TWO)
    worker = world.join("worker")
    wanted = world.issue(*requests(16))
    assert len(world.give(worker, speed=8.0)) == 4
    # Four rows at eight row-steps per second: ten steps take 5 s.
    world.now = 2.5
    assert world.give(worker, 4, speed=8.0) == wanted[4:8]


def test_helper_and_previews_begin_all_rows_at_once():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*requests(16))
    world.scheduler.pull(worker, 8, 8.0, world.now, helps=True)
    assert len(given_to(worker, world.assign())) == 8
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*(request(seed, work=Work.PREVIEW) for seed in range(16)))
    assert len(world.give(worker, speed=8.0)) == 8
