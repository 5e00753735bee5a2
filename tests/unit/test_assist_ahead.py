"""Trainers that roll out groups of the next iteration while they starve."""

from assist_stories import SPOT, TRAINS, Tale
from scheduled_world import request

from spotlight.control.pipeline.tag import NextPart


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
        foreseen = NextPart(groups, 1, 1000.0, 0.0, iteration=0)
        tale.assist.wait(lambda foreseen=foreseen: foreseen, tale.now)
        tale.serve()
        assert tale.helps() is helps
