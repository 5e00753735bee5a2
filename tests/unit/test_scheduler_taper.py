"""Stories of slots that draw what is left in two rounds, eight rows of ten steps at one row-step per second each."""

from scheduled_world import EXACT, World, given_to, request, requests

from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Work

IN_TWO = EXACT.model_copy(update={"last_rounds": 2})


def two_that_ask(world: World) -> tuple[WorkerId, WorkerId]:
    first, second = world.join("first"), world.join("second")
    for worker in (first, second):
        world.pull(worker, 8, speed=8.0)
    return first, second


def test_slots_begin_half_of_their_share_when_two_shares_are_left():
    for settings, begun in ((EXACT, 8), (IN_TWO, 4)):
        world = World(settings)
        first, second = two_that_ask(world)
        world.issue(*requests(16))
        given = world.assign()
        assert len(given_to(first, given)) == len(given_to(second, given)) == begun


def test_slots_fill_all_rows_as_long_as_much_is_left():
    world = World(IN_TWO)
    first, second = two_that_ask(world)
    world.issue(*requests(32))
    given = world.assign()
    assert len(given_to(first, given)) == len(given_to(second, given)) == 8


def test_batches_shrink_as_less_is_left_until_everything_is_drawn():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*requests(16))
    rounds = []
    while taken := world.give(worker, 8, speed=8.0):
        rounds.append(len(taken))
        for each in taken:
            world.finish(worker, each)
    assert rounds == [8, 4, 2, 1, 1]


def test_rows_that_make_no_step_longer_are_begun_in_any_case():
    world = World(IN_TWO.model_copy(update={"saturating_rows": 4}))
    worker = world.join("worker")
    world.issue(*requests(5))
    assert len(world.give(worker, 8, speed=8.0)) == 4


def test_rows_with_previews_keep_no_rollout_waiting():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*(request(seed, work=Work.PREVIEW) for seed in range(4)))
    assert len(world.give(worker, 8, speed=8.0)) == 4
    wanted = world.issue(*requests(2))
    assert world.give(worker, 4, speed=8.0) == wanted[:1]


def test_who_helps_or_leaves_begins_all_that_it_has_time_for():
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*requests(8))
    world.scheduler.pull(worker, 8, 8.0, world.now, helps=True)
    assert len(given_to(worker, world.assign())) == 8
    world = World(IN_TWO)
    worker = world.join("worker")
    world.issue(*requests(8))
    world.scheduler.warn(worker, NoticeKind.IMMINENT, world.now + 60.0, world.now)
    assert len(world.give(worker, speed=8.0)) == 8
