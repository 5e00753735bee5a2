"""When the slots that train help to roll out: one spot worker, one that trains, arithmetic for the head.

Both take a row-step in a tenth of a second at a full batch of ten rows: a step of a batch is 1 s, a sample of ten steps
takes 10 s.
"""

from collections.abc import Sequence

import pytest
from scheduled_world import CURRENT, EXACT, request

from spotlight.control.directory import Directory, KnownWorker, PublishedSet
from spotlight.control.ledger import Ledger
from spotlight.control.pipeline.assist import Assist, AssistState, Foreseen
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.events import ReleaseReason
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, RequestId, SlotClass

SPOT, TRAINS = WorkerId("spot"), WorkerId("trains")
ROWS, SPEED = 10, 10.0
DRAWN = [RequestId(f"drawn before/{place}") for place in range(ROWS)]
"""A group that nothing is left of to draw."""


class Tale:
    """A gang of one beside one spot worker, and what they were given."""

    def __init__(self, speed: float | None = SPEED, **pipeline: float) -> None:
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger, EXACT)
        self.directory = Directory()
        self.assist = Assist(PipelineConfig(**{"gap": True, **pipeline}), self.directory, self.scheduler)
        self.given: dict[WorkerId, list[RequestId]] = {SPOT: [], TRAINS: []}
        self.now, self._speed = 0.0, speed
        for worker, trains in ((SPOT, False), (TRAINS, True)):
            self.directory.introduce(worker, KnownWorker(NodeId("node"), trains))
            self.scheduler.join(worker, SlotClass.RESERVED, ROWS, self.now)
            self.scheduler.holds(worker, [CURRENT])

    def issue(self, groups: int, size: int = ROWS) -> list[list[RequestId]]:
        wanted: list[list[Request]] = [
            [request(seed, group) for seed in range(size * group, size * group + size)] for group in range(groups)
        ]
        everything = [each for group in wanted for each in group]
        self.ledger.issue(everything)
        self.scheduler.add(everything)
        return [[each.id for each in group] for group in wanted]

    def asks(self, worker: WorkerId, rows: int = ROWS) -> None:
        self.assist.ask(worker, m.Pull(free_rows=rows, row_steps_per_s=self._speed), self.now)
        self.serve()

    def serve(self) -> None:
        self.assist.let_through(self.now)
        for assignment in self.scheduler.assign(self.now):
            self.given[assignment.worker] += [lease.request.id for lease in assignment.leases]

    def waits(self, groups: Sequence[Sequence[RequestId]], train_s: float | None = None, sample_s: float = 0.0) -> None:
        self.assist.wait(lambda: Foreseen([list(group) for group in groups], 1, train_s, sample_s), self.now)

    def helped_late(self) -> list[list[RequestId]]:
        """The spot worker is two steps into the first of eight groups when the other one comes to help."""
        groups = self.issue(8)
        self.asks(SPOT)
        self.assist.train([TRAINS], self.now)
        self.now = 2.0
        self.scheduler.heard(SPOT, [m.Progress(each, 1, 2) for each in self.given[SPOT]], self.now)
        self.asks(TRAINS)
        self.waits(groups[:1], train_s=20.0)
        self.serve()
        return groups

    def announced(self, fetch_s: float, own_s: float = 0.0) -> None:
        """New weights, which the spot worker holds after so long, and the other one at once or after so long."""
        self.directory.weights[CURRENT] = PublishedSet("digest", "", announced_at=self.now)
        for worker, seconds in ((SPOT, fetch_s), (TRAINS, own_s)):
            self.directory.workers[worker].fetch_s = seconds
            if seconds:
                self.scheduler.holds(worker, [])
            else:
                self.directory.holds(worker, CURRENT, self.now)

    def helps(self) -> bool:
        return bool(self.given[TRAINS])


def test_pull_of_a_worker_that_trains_is_kept_while_a_part_is_trained_and_passed_on_when_it_waits() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    assert not tale.helps()
    assert tale.assist.state is AssistState.TRAINING
    tale.waits(groups[:1])
    tale.serve()
    assert tale.helps()
    assert tale.assist.state is AssistState.ASSISTING


def test_help_needs_a_bubble_longer_than_both_changes_of_role_and_a_step() -> None:
    for reached, helps in ((6, True), (7, False)):
        tale = Tale(switch_s=1.0)
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        # The first group is ten steps of a second: at step 6 its end is 4 s away, and in, a step and out take 3 s.
        tale.now = float(reached)
        progress = [m.Progress(each, 1, reached) for each in tale.given[SPOT]]
        tale.scheduler.heard(SPOT, progress, tale.now)
        tale.asks(TRAINS)
        tale.waits(groups[:1])
        tale.serve()
        assert tale.helps() is helps


def test_time_that_has_passed_since_the_last_word_counts_as_progress() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.now = 9.5
    tale.asks(TRAINS)
    tale.waits(groups[:1])
    tale.serve()
    assert not tale.helps()
    assert tale.assist.state is AssistState.WAITING


def test_no_help_where_training_is_what_everybody_waits_for() -> None:
    for train_s, helps in ((20.0, True), (90.0, False)):
        tale = Tale()
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.asks(TRAINS)
        # Eight groups take the spot worker 80 s, and the first one 10 s.
        tale.waits(groups[:1], train_s)
        tale.serve()
        assert tale.helps() is helps


def test_what_is_trained_after_the_last_rollouts_counts_for_these() -> None:
    """Eight groups take the spot worker 80 s, counted as 88, and the last one 9 s to train: longer than 10 s and all
    training."""
    for sample_s, helps in ((0.9, True), (0.0, False)):
        tale = Tale()
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.asks(TRAINS)
        tale.waits(groups[:1], train_s=80.0, sample_s=sample_s)
        tale.serve()
        assert tale.helps() is helps


def test_help_that_ends_before_a_part_is_trainable_is_with_what_is_needed_first() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    tale.waits(groups[:1], train_s=20.0)
    tale.serve()
    assert tale.given[TRAINS] == groups[1]


def test_help_that_may_be_called_away_leaves_to_others_what_they_begin_next() -> None:
    tale = Tale()
    groups = tale.helped_late()
    # Two rounds of all rows of the spot worker: the second and the third group.
    assert tale.given[TRAINS] == groups[3]


def test_rows_that_a_helper_hands_back_wait_for_their_turn() -> None:
    tale = Tale()
    groups = tale.helped_late()
    begun = list(tale.given[TRAINS])
    tale.assist.train([TRAINS], tale.now)
    for each in begun:
        assert tale.scheduler.hand_back(TRAINS, each, 1, 4, tale.now)
    for place, group in enumerate(groups[1:], start=1):
        for each in tale.given[SPOT][-ROWS:]:
            tale.scheduler.drop(each, "told")
        tale.asks(SPOT)
        assert sorted(tale.given[SPOT][-ROWS:]) == sorted(group), place


def test_help_while_the_others_fetch_the_weights_though_training_is_the_longest() -> None:
    for fetch_s, helps in ((5.0, True), (0.0, False)):
        tale = Tale()
        tale.announced(fetch_s)
        groups = tale.issue(8)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.asks(TRAINS)
        # The spot worker alone begins when it holds them and takes 10 s; the helper takes 10 s from now on.
        tale.waits(groups[:1], train_s=1000.0)
        tale.serve()
        assert tale.helps() is helps


def test_help_with_a_part_that_takes_the_others_two_rounds() -> None:
    for size, helps in ((2 * ROWS, True), (ROWS, False)):
        tale = Tale()
        tale.announced(0.0)
        groups = tale.issue(8, size)
        tale.scheduler.pull(SPOT, ROWS, SPEED, tale.now)
        tale.assist.train([TRAINS], tale.now)
        tale.assist.ask(TRAINS, m.Pull(free_rows=ROWS, row_steps_per_s=SPEED), tale.now)
        tale.waits(groups[:1], train_s=1000.0)
        tale.assist.let_through(tale.now)
        assert (tale.assist.state is AssistState.ASSISTING) is helps


def test_help_with_what_training_itself_waits_for_though_training_is_the_longest() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    # Nobody has begun the second group: alone, the spot worker finishes it in 20 s, with help it takes 10 s.
    tale.waits(groups[1:2], train_s=1000.0)
    tale.serve()
    assert tale.given[TRAINS] == groups[1]


def test_helper_that_would_begin_after_the_others_have_finished_gets_nothing() -> None:
    for late_s, helps in ((5.0, True), (40.0, False)):
        tale = Tale()
        tale.issue(3)
        tale.asks(SPOT)
        # The two groups that wait would take both of them 10 s each, and the spot worker alone 20 s more.
        tale.scheduler.pull(TRAINS, ROWS, SPEED, tale.now, late_s=late_s)
        tale.serve()
        assert tale.helps() is helps


def test_before_anything_is_measured_the_gang_helps() -> None:
    tale = Tale(speed=None, switch_s=5.0)
    groups = tale.issue(8)
    tale.asks(TRAINS)
    tale.waits(groups[:1], train_s=1000.0)
    tale.asks(SPOT)
    assert tale.helps()


def test_pull_that_stood_when_training_ended_is_decided_about_before_the_next_rollouts_are_given() -> None:
    tale = Tale()
    tale.assist.train([TRAINS], tale.now)
    tale.assist.rest(tale.now)
    tale.asks(TRAINS)
    tale.asks(SPOT)
    groups: list[list[RequestId]] = []
    tale.assist.wait(lambda: Foreseen(groups[:1], 1, 1000.0), tale.now)
    groups += tale.issue(8)
    tale.serve()
    assert tale.given[SPOT] == groups[0]
    assert not tale.helps()


def test_without_tag_the_gang_rolls_out_only_when_nobody_else_may() -> None:
    tale = Tale(tag=False, gap=False)
    tale.issue(8)
    tale.asks(TRAINS)
    tale.asks(SPOT)
    assert not tale.helps()
    tale.scheduler.warn(SPOT, NoticeKind.IMMINENT, 1.0, tale.now)
    tale.serve()
    assert tale.helps()


def test_without_gap_a_worker_that_trains_is_served_as_any_other() -> None:
    tale = Tale(gap=False)
    tale.issue(8)
    tale.asks(TRAINS)
    assert tale.helps()


def test_pull_of_a_worker_that_is_gone_is_forgotten() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.assist.train([TRAINS], tale.now)
    tale.asks(TRAINS)
    tale.scheduler.lose(TRAINS, ReleaseReason.LOST, tale.now)
    tale.directory.forget(TRAINS)
    tale.waits(groups[:1])
    tale.asks(SPOT)
    assert tale.given[SPOT]
    assert not tale.helps()


def test_help_where_the_other_neither_works_nor_asks() -> None:
    """A crew's leader may hand back what it has not begun, and ask for nothing for a long time."""
    for is_engaged, helps in ((True, False), (False, True)):
        tale = Tale(switch_s=20.0)
        groups = tale.issue(2)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        if not is_engaged:
            for each in groups[0]:
                tale.scheduler.hand_back(SPOT, each, 1, 0, tale.now)
            tale.scheduler.pull(SPOT, 0, SPEED, tale.now)
        tale.asks(TRAINS)
        tale.waits(groups[:1])
        tale.serve()
        assert tale.helps() is helps


def test_trainers_begin_what_they_will_wait_for_while_others_fetch() -> None:
    """The spot worker holds the weights after 5 s and then takes 10 s: with 3 s of training now, 12 s would be lost,
    and both are equally fast; a step of 1 s is left for handing over."""
    for fetch_s, ready_s, expected in ((5.0, 3.0, 4.0), (5.0, 9.0, 3.0), (5.0, 14.5, 0.0), (0.0, 3.0, 0.0)):
        tale = Tale()
        tale.announced(fetch_s)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen(groups[:1], 1, 20.0)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == expected


def test_trainers_that_have_to_fetch_as_well_begin_only_what_they_can_draw_before_the_others() -> None:
    """As above, but the trainer holds the weights after 2 s, of which it draws nothing: a part of what is lost."""
    for own_s, ready_s, expected in (
        (2.0, 3.0, 4.0),
        (2.0, 9.0, 4.0),
        (2.0, 10.0, 3.5),
        (3.5, 3.0, 0.0),
        (6.0, 3.0, 0.0),
    ):
        tale = Tale()
        tale.announced(5.0, own_s)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen(groups[:1], 1, 20.0)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == expected


def test_trainers_look_beyond_parts_that_are_there_for_one_that_they_will_wait_for() -> None:
    """As in the first of these, but a group that is drawn already comes before the one that is not: its 3 s of training
    are as much less to wait, and the wait is all the same, although the part that follows is there."""
    for ready_s, expected in ((3.0, 4.0), (6.0, 3.0), (11.5, 0.0)):
        tale = Tale()
        tale.announced(5.0)
        groups = tale.issue(2)
        for worker in (SPOT, TRAINS):
            tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
        following = Foreseen([DRAWN, groups[0]], 1, 20.0, sample_s=0.3)
        assert tale.assist.head_start_s(following, ready_s, tale.now) == pytest.approx(expected)


def test_trainers_roll_out_at_once_though_a_part_is_there_until_they_train() -> None:
    for at_once in (True, False):
        tale = Tale()
        groups = tale.issue(3)
        tale.asks(SPOT)
        tale.assist.train([TRAINS], tale.now)
        tale.assist.wait(lambda last=groups[-1]: Foreseen([DRAWN, last], 1, 20.0, 0.3), tale.now, at_once)
        tale.asks(TRAINS)
        assert tale.helps() is at_once
        tale.assist.train([TRAINS], tale.now)
        tale.waits([DRAWN], train_s=20.0)
        tale.given[TRAINS].clear()
        tale.asks(TRAINS)
        assert not tale.helps(), "another wait is decided about anew"


def test_trainers_that_may_not_help_begin_nothing_before_they_train() -> None:
    tale = Tale(tag=False)
    tale.announced(5.0)
    groups = tale.issue(2)
    for worker in (SPOT, TRAINS):
        tale.scheduler.pull(worker, ROWS, SPEED, tale.now)
    assert tale.assist.head_start_s(Foreseen(groups[:1], 1, 20.0), 3.0, tale.now) == 0.0


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
        foreseen = Foreseen(groups, 1, 1000.0, 0.0, iteration=0)
        tale.assist.wait(lambda foreseen=foreseen: foreseen, tale.now)
        tale.serve()
        assert tale.helps() is helps
