"""Checkpoints that are written while the run goes on: which one counts, and what becomes of one that is not whole."""

from functools import cache

import pytest
from story import Story, When

from spotlight.core.events import AnyEvent, Checkpointed, IterationDone, Restored, RunStopped, StepCommitted
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.sim_worker import Pace

ITERATIONS = 5
LATE_S = 8.0
"""A checkpoint is on disk when the next step is committed, but before the one after that."""


def story_of(every: int = 2, save_s: float = LATE_S, **config: object) -> Story:
    output = {"checkpoint_every": every, "journal": {"sync": "never"}}
    story = Story(iterations=ITERATIONS, output=output, **config)
    usual = story.policy.pace

    def pace(worker: WorkerId, slot_class: SlotClass) -> Pace:
        found = usual(worker, slot_class)
        found.save_s = save_s
        return found

    story.policy.pace = pace
    return story


@cache
def undisturbed() -> str:
    with story_of(save_s=0.2) as story:
        story.end()
        return story.theta


def steps(story: Story, kind: type[AnyEvent]) -> list[int]:
    return [event.step for event in story.said(kind)]


def place(story: Story, event: AnyEvent) -> int:
    return story.events.index(event)


def test_steps_are_taken_while_a_checkpoint_is_written_and_it_is_restored_as_of_its_own_step() -> None:
    with story_of() as story:
        story.until(lambda: story.said(Checkpointed))
        (saved,) = story.said(Checkpointed)
        assert saved.step == 2
        assert steps(story, StepCommitted)[2:], "nothing was trained before it was on disk"
        story.kill("reserved-1")
        story.end()
        assert steps(story, Restored) == [2]
        assert story.theta == undisturbed()


def test_run_is_not_held_up_by_a_checkpoint_that_is_written_in_time() -> None:
    ends = []
    for save_s in (0.2, 3.0):
        with story_of(save_s=save_s) as story:
            story.until(lambda told=story: len(told.said(IterationDone)) == ITERATIONS)
            ends.append(story.world.now)
            story.end()
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def test_iterations_between_two_checkpoints_do_not_wait_for_the_one_that_is_written() -> None:
    ends = []
    for save_s in (0.2, LATE_S):
        with story_of(every=3, save_s=save_s) as story:
            story.until(lambda told=story: len(told.said(IterationDone)) == ITERATIONS)
            ends.append(story.world.now)
            story.end()
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def test_tensors_go_when_the_checkpoint_that_covers_them_counts_and_not_when_it_is_begun() -> None:
    def kept(story: Story) -> set[int]:
        return {int(name.split("/")[1]) for name in story.storage.payloads()}

    with story_of() as story:
        story.until(lambda: len(story.said(StepCommitted)) == 3)
        assert not story.said(Checkpointed)
        assert kept(story) >= {0, 1, 2}
        story.until(lambda: story.said(Checkpointed))
        assert kept(story) >= {2}
        assert not kept(story) & {0, 1}
        story.end()


def test_gang_lost_while_a_checkpoint_is_written_goes_back_to_the_one_before_and_begins_another_soon() -> None:
    with story_of() as story:
        story.until(lambda: len(story.said(StepCommitted)) == 3)
        assert not story.said(Checkpointed)
        story.kill("reserved-1")
        story.end()
        assert steps(story, Restored) == [0]
        assert steps(story, Checkpointed)[0] == 3, "the next iteration's end, not the next even one"
        assert steps(story, Checkpointed)[-1] == ITERATIONS
        assert story.theta == undisturbed()


@pytest.mark.parametrize("window", [CrashPoint.SAVING, CrashPoint.SAVED])
def test_gang_struck_at_the_end_of_writing_loses_the_checkpoint_though_it_may_be_whole(window: CrashPoint) -> None:
    with story_of() as story:
        story.strike(window)
        story.until(lambda: story.said(Restored))
        assert steps(story, Restored) == [0]
        assert not story.said(Checkpointed)
        assert ("checkpoints/step_000002" in story.storage.checkpoints) is (window is CrashPoint.SAVED)
        story.end()
        assert not [path for path in story.storage.checkpoints if path.endswith(".part")]
        assert story.theta == undisturbed()


def test_stop_waits_for_the_checkpoint_under_way_and_leaves_one_of_the_last_step() -> None:
    with story_of() as story:
        story.until(lambda: len(story.said(StepCommitted)) == 3)
        assert not story.said(Checkpointed)
        story.stop()
        story.until(lambda: story.said(RunStopped))
        assert steps(story, Checkpointed) == [2, 3]
        assert len(story.said(IterationDone)) == 3
        story.end()
        assert not story.said(Restored)
        assert steps(story, StepCommitted) == list(range(ITERATIONS))
        assert story.theta == undisturbed()


def test_gang_lost_while_a_stop_waits_takes_its_steps_again_and_leaves_one_of_the_last() -> None:
    with story_of() as story:
        story.until(lambda: len(story.said(StepCommitted)) == 3)
        story.stop()
        story.until(lambda: len(story.said(IterationDone)) == 3)
        story.kill("reserved-1")
        story.until(lambda: story.said(RunStopped))
        assert steps(story, Restored) == [0]
        assert steps(story, Checkpointed) == [3]
        story.end()
        assert story.theta == undisturbed()


def test_checkpoint_that_is_due_waits_for_the_one_under_way() -> None:
    with story_of(every=1, save_s=60.0) as story:
        story.end()
        lines = [line.split()[-3:] for line in story.trace.lines]
        said = [f"{word} {step}" for word, _, step in lines if word in ("Save", "Saved")]
        # The first word is that of the gang's beginning.
        assert said[1:] == [f"{word} {step}" for step in range(1, ITERATIONS + 1) for word in ("Save", "Saved")]
        assert steps(story, Checkpointed) == [1, 2, 3, 4, 5]
        committed, first = story.said(StepCommitted), story.said(Checkpointed)[0]
        assert place(story, committed[1]) < place(story, first) < place(story, committed[2])


def test_disk_full_under_a_checkpoint_stops_the_run_at_once_and_resuming_goes_back_to_the_one_before() -> None:
    with story_of() as story:
        story.expects = "step_000002 cannot be written"
        story.storage.is_full = lambda name: name.startswith("checkpoints/") and story.lives == 1
        story.until(lambda: story.said(RunStopped))
        (stopped,) = story.said(RunStopped)
        assert stopped.reason.startswith("training stopped: the checkpoint checkpoints/step_000002 cannot be written")
        assert not story.said(Checkpointed)
        assert len(story.said(IterationDone)) == 3, "told at once, not when somebody waits for the next one"
        story.end()
        assert steps(story, Restored) == [0]
        assert story.theta == undisturbed()


@pytest.mark.parametrize("when", list(When))
def test_controller_that_dies_around_the_record_of_a_late_checkpoint_resumes_to_the_same_weights(when: When) -> None:
    with story_of() as story:
        story.crash(when, Checkpointed)
        story.end()
        assert story.lives == 2
        assert steps(story, Restored) == ([2] if when is When.AFTER else [0])
        assert story.theta == undisturbed()


def test_checkpoint_that_hangs_costs_its_time_limit_and_the_gang() -> None:
    with story_of(save_s=1e6, train={"updates_per_iteration": 1, "timeout_s": 30.0}) as story:
        usual, first = story.policy.pace, WorkerId("reserved-1.1/0.1")

        def pace(worker: WorkerId, slot_class: SlotClass) -> Pace:
            found = usual(worker, slot_class)
            found.save_s = found.save_s if worker == first else LATE_S
            return found

        story.policy.pace = pace
        story.end()
        assert any("sent no reply to Save within 30 s" in problem for problem in story.problems)
        assert steps(story, Restored)[0] == 0
        assert story.theta == undisturbed()
