"""When the slots that train help to roll out: one spot worker, one that trains, arithmetic for the head."""

from assist_stories import ROWS, SPEED, SPOT, TRAINS, Tale

from spotlight.control.pipeline.tag import AssistState, NextPart
from spotlight.core import messages as m
from spotlight.core.events import ReleaseReason
from spotlight.core.work import NoticeKind, RequestId


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
        tale.scheduler.heartbeat(SPOT, progress, tale.now)
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
        tale.scheduler.pull(SPOT, m.Pull(free_rows=ROWS, row_steps_per_s=SPEED), tale.now)
        tale.assist.train([TRAINS], tale.now)
        tale.assist.pull(TRAINS, m.Pull(free_rows=ROWS, row_steps_per_s=SPEED), tale.now)
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
        tale.scheduler.pull(TRAINS, m.Pull(free_rows=ROWS, row_steps_per_s=SPEED), tale.now, late_s=late_s)
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
    tale.assist.wait(lambda: NextPart(groups[:1], 1, 1000.0), tale.now)
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
            tale.scheduler.pull(SPOT, m.Pull(free_rows=0, row_steps_per_s=SPEED), tale.now)
        tale.asks(TRAINS)
        tale.waits(groups[:1])
        tale.serve()
        assert tale.helps() is helps
