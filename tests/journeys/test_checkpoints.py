"""Checkpoints written while the run continues: when one counts, and which one a lost gang restores."""

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
"""A checkpoint reaches the disk after the next commit and before the one after that."""


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
    return [event.step for event in story.recorded(kind)]


def place(story: Story, event: AnyEvent) -> int:
    return story.events.index(event)


def test_steps_are_taken_while_a_checkpoint_is_written_and_restoring_it_returns_to_its_own_step() -> None:
    with story_of() as story:
        story.until(lambda: story.recorded(Checkpointed))
        (saved,) = story.recorded(Checkpointed)
        assert saved.step == 2
        assert steps(story, StepCommitted)[2:], "training waited for the checkpoint"
        story.kill("reserved-1")
        story.end()
        assert steps(story, Restored) == [2]
        assert story.theta == undisturbed()


def test_run_is_not_held_up_by_a_checkpoint_that_is_written_in_time() -> None:
    ends = []
    for save_s in (0.2, 3.0):
        with story_of(save_s=save_s) as story:
            story.until(lambda story=story: len(story.recorded(IterationDone)) == ITERATIONS)
            ends.append(story.world.now)
            story.end()
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def test_iterations_between_two_checkpoints_do_not_wait_for_the_one_that_is_written() -> None:
    ends = []
    for save_s in (0.2, LATE_S):
        with story_of(every=3, save_s=save_s) as story:
            story.until(lambda story=story: len(story.recorded(IterationDone)) == ITERATIONS)
            ends.append(story.world.now)
            story.end()
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def test_tensors_are_deleted_when_the_checkpoint_that_covers_them_is_complete() -> None:
    def kept(story: Story) -> set[int]:
        return {int(name.split("/")[1]) for name in story.storage.payloads()}

    with story_of() as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 3)
        assert not story.recorded(Checkpointed)
        assert kept(story) >= {0, 1, 2}
        story.until(lambda: story.recorded(Checkpointed))
        assert kept(story) >= {2}
        assert not kept(story) & {0, 1}
        story.end()


def test_gang_lost_while_a_checkpoint_is_written_restores_the_one_before_and_writes_another_soon() -> None:
    with story_of() as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 3)
        assert not story.recorded(Checkpointed)
        story.kill("reserved-1")
        story.end()
        assert steps(story, Restored) == [0]
        assert steps(story, Checkpointed)[0] == 3, "at the end of the next iteration, not of the next even one"
        assert steps(story, Checkpointed)[-1] == ITERATIONS
        assert story.theta == undisturbed()


@pytest.mark.parametrize("window", [CrashPoint.SAVING, CrashPoint.SAVED])
def test_gang_killed_at_the_end_of_writing_loses_the_checkpoint_even_if_it_is_complete(window: CrashPoint) -> None:
    with story_of() as story:
        story.crash_at(window)
        story.until(lambda: story.recorded(Restored))
        assert steps(story, Restored) == [0]
        assert not story.recorded(Checkpointed)
        assert ("checkpoints/step_000002" in story.storage.checkpoints) is (window is CrashPoint.SAVED)
        story.end()
        assert not [path for path in story.storage.checkpoints if path.endswith(".part")]
        assert story.theta == undisturbed()


def test_stop_waits_for_the_checkpoint_under_way_and_leaves_one_of_the_last_step() -> None:
    with story_of() as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 3)
        assert not story.recorded(Checkpointed)
        story.stop()
        story.until(lambda: story.recorded(RunStopped))
        assert steps(story, Checkpointed) == [2, 3]
        assert len(story.recorded(IterationDone)) == 3
        story.end()
        assert not story.recorded(Restored)
        assert steps(story, StepCommitted) == list(range(ITERATIONS))
        assert story.theta == undisturbed()


def test_gang_lost_while_a_stop_waits_takes_its_steps_again_and_leaves_one_of_the_last() -> None:
    with story_of() as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 3)
        story.stop()
        story.until(lambda: len(story.recorded(IterationDone)) == 3)
        story.kill("reserved-1")
        story.until(lambda: story.recorded(RunStopped))
        assert steps(story, Restored) == [0]
        assert steps(story, Checkpointed) == [3]
        story.end()
        assert story.theta == undisturbed()


def test_checkpoint_that_is_due_waits_for_the_one_under_way() -> None:
    with story_of(every=1, save_s=60.0) as story:
        story.end()
        lines = [line.split()[-3:] for line in story.trace.lines]
        messages = [f"{name} {step}" for name, _, step in lines if name in ("Save", "Saved")]
        # The first message belongs to the start of the gang.
        assert messages[1:] == [f"{name} {step}" for step in range(1, ITERATIONS + 1) for name in ("Save", "Saved")]
        assert steps(story, Checkpointed) == [1, 2, 3, 4, 5]
        committed, first = story.recorded(StepCommitted), story.recorded(Checkpointed)[0]
        assert place(story, committed[1]) < place(story, first) < place(story, committed[2])


def test_full_disk_under_a_checkpoint_stops_the_run_at_once_and_resuming_restores_the_one_before() -> None:
    with story_of() as story:
        story.expected_reason = "step_000002 cannot be written"
        story.storage.is_full = lambda name: name.startswith("checkpoints/") and story.lives == 1
        story.until(lambda: story.recorded(RunStopped))
        (stopped,) = story.recorded(RunStopped)
        assert stopped.reason.startswith("training stopped: the checkpoint checkpoints/step_000002 cannot be written")
        assert not story.recorded(Checkpointed)
        assert len(story.recorded(IterationDone)) == 3, "the failure is reported at once, not with the next checkpoint"
        story.end()
        assert steps(story, Restored) == [0]
        assert story.theta == undisturbed()


@pytest.mark.parametrize("when", list(When))
def test_controller_that_dies_around_the_record_of_a_late_checkpoint_resumes_to_the_same_weights(when: When) -> None:
    with story_of() as story:
        story.crash_controller(when, Checkpointed)
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
