"""A run without progress records what it waits for and stops; it can be resumed."""

import pytest
from story import Story

from spotlight.core import messages as m
from spotlight.core.events import Accepted, ProblemNoted, RunStopped
from spotlight.core.types import WorkerId
from spotlight.sim.sim_node import SimNode

CLUSTER = {"commit_every": 2, "heartbeat_s": 1.0, "silence_s": 8.0, "start_s": 20.0}


def test_run_whose_nodes_drop_every_load_notes_the_stall_and_stops_with_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Story(cluster=CLUSTER) as story, monkeypatch.context() as patch:

        def lose(node: SimNode, load: m.Load, worker: WorkerId | None) -> None:
            """Neither delivered nor reported."""

        patch.setattr(SimNode, "_load", lose)
        story.expected_reason = "nothing has progressed"
        story.until(lambda: story.recorded(RunStopped))
        patch.undo()
        (stopped,) = story.recorded(RunStopped)
        assert "waited for 6 rollouts of iteration 0" in stopped.reason
        assert not story.recorded(Accepted)
        (noted,) = story.recorded(ProblemNoted)
        assert noted.source == "controller"
        assert "the run stops if that goes on" in noted.problem
        story.end()


@pytest.mark.parametrize("kills", [1, 5])
def test_reward_processes_killed_idle_or_busy_leave_every_sample_scored_and_the_same_weights(kills: int) -> None:
    with Story() as story:
        story.end()
        undisturbed = story.theta
    with Story() as story:
        for seen in range(kills):
            story.until(lambda seen=seen: len(story.recorded(Accepted)) > 2 * seen)
            for name in story.world.names():
                story.world.kill_reward_process(name)
        report = story.end()
        assert not report.gaps.exist
        assert story.theta == undisturbed
