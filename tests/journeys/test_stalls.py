"""A run without progress records what it waits for and stops; it can be resumed."""

import pytest
from story import Story, When

from spotlight.core.events import Accepted, NodeLost, ProblemNoted, RunStopped
from spotlight.node.agent_core import AgentCore
from spotlight.node.announcements import Announced

CLUSTER = {"commit_every": 2, "heartbeat_s": 1.0, "silence_s": 8.0, "start_s": 20.0}


def test_run_whose_nodes_drop_every_load_notes_the_stall_and_stops_with_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Story(cluster=CLUSTER) as story, monkeypatch.context() as patch:

        def lose(node: AgentCore, announced: Announced) -> None:
            """Neither delivered nor reported."""

        patch.setattr(AgentCore, "_announce", lose)
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


TWO = {"terms": [{"name": "jpeg", "weight": 0.5}, {"name": "ocr"}], "combine": "gdpo"}


@pytest.mark.parametrize("reward", [{}, TWO], ids=["one reward", "two rewards"])
def test_outage_of_a_reward_longer_than_any_stall_ends_with_every_sample_scored_and_the_same_weights(
    reward: dict[str, object],
) -> None:
    with Story(cluster=CLUSTER, reward=reward) as story:
        story.end()
        undisturbed = story.theta
    with Story(cluster=CLUSTER, reward=reward) as story:
        story.until(lambda: len(story.recorded(Accepted)) > 3)
        scored = len(story.recorded(Accepted))
        story.world.lose_reward(story.world.rewards[-1].key, 3600.0)
        story.wait(1800.0)
        assert "to score" in story.hub.waiting_for()
        assert "the simulated endpoint is down" in story.hub.waiting_for()
        assert len(story.recorded(Accepted)) - scored <= 4, "only pictures that were scored when it went down"
        story.wait(1900.0)
        report = story.end()
        assert not report.gaps.exist
        assert story.theta == undisturbed
        assert any("cannot score now" in problem for problem in story.problems)
        assert not any("nothing has progressed" in problem for problem in story.problems)


def test_run_that_is_resumed_after_a_death_in_an_outage_scores_every_sample() -> None:
    with Story(cluster=CLUSTER) as story:
        story.end()
        undisturbed = story.theta
    with Story(cluster=CLUSTER) as story:
        story.until(lambda: len(story.recorded(Accepted)) > 3)
        story.world.lose_reward("", 200.0)
        story.until(lambda: "to score" in story.hub.waiting_for())
        story.crash_controller(When.AFTER, NodeLost)
        story.world.kill("spot-1")
        report = story.end()
        assert story.lives == 2
        assert not report.gaps.exist
        assert story.theta == undisturbed
