"""A worker that does not reply in time is killed, and the run continues as after any loss."""

from dataclasses import asdict
from functools import cache

from story import Story

from spotlight.core.events import Accepted, Checkpointed, Restored, StepCommitted, WorkerLost
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass
from spotlight.sim.sim_worker import Pace

FIRST_GANG = WorkerId("reserved-1.1/0.1")
FOR_EVER_S = 1e6


@cache
def undisturbed() -> str:
    with Story() as story:
        story.end()
        return story.theta


def test_training_step_that_never_ends_costs_only_its_time_limit() -> None:
    with Story(train={"updates_per_iteration": 1, "timeout_s": 50.0}) as story:
        usual = story.policy.pace

        def pace(worker: WorkerId, slot_class: SlotClass) -> Pace:
            found = usual(worker, slot_class)
            found.train_s = FOR_EVER_S if worker == FIRST_GANG else found.train_s
            return found

        story.policy.pace = pace
        story.end()
        assert [lost.worker for lost in story.recorded(WorkerLost)] == [FIRST_GANG]
        assert [step.step for step in story.recorded(StepCommitted)] == [0, 1, 2]
        assert not story.recorded(Restored), "no step was committed before the hang"
        assert any("sent no reply to Train within 50 s" in problem for problem in story.problems)
        assert story.theta == undisturbed()


class SlowCopy(Pace):
    """A trainer that copies its state for longer than the time limit of a recall."""

    def snapshot(self) -> float:
        return 40.0


def test_long_snapshot_delays_no_samples_and_no_worker_is_lost() -> None:
    with Story(spot=1, eval={"every": 1, "prompts": 12, "steps": 6}) as story:
        usual = story.policy.pace
        story.policy.pace = lambda worker, slot_class: SlowCopy(**asdict(usual(worker, slot_class)))
        story.end()
        saved = story.events.index(story.recorded(Checkpointed)[0])
        made = [event.request for event in story.events[:saved] if isinstance(event, Accepted)]
        assert sum(request.startswith("evaluation/2/") for request in made) == 12, (
            "the other workers did not make them meanwhile"
        )
        assert not story.recorded(WorkerLost)
        assert not story.recorded(Restored)
