"""Real runs with several rewards, and with a reward that cannot score at first."""

import math
from pathlib import Path

import pytest
from live_run import LiveRun

from spotlight.compute.rewards.config import RewardConfig, weights_of
from spotlight.control.advantage import StdMode, decoupled_advantages
from spotlight.control.run_state import RunState
from spotlight.core.events import Accepted, Compared, Evaluated, ProblemNoted, RunStopped

# In the default tests: two rewards in test_own_inputs.py, outages in virtual time in tests/journeys/test_stalls.py.
pytestmark = pytest.mark.slow

RECIPE = """
extends: words-nft
iterations: 2
rollout: {prompts: 2, group_size: 4, steps: 2}
train: {micro_batch: 4}
explore: {seeds: 6, steps: 1, audit_share: 0.5}
eval: {every: 2, prompts: 4, steps: 2}
cluster: {reserved: 1, spot: 1, rows: 4}
output: {name: run, journal: {sync: never}}
"""
TWO = """
reward:
  combine: gdpo
  terms:
    - {name: jpeg, weight: 3, processes: 1}
    - {name: "own_rewards:bright", weight: 4, options: {gain: 2.0}, processes: 1, batch: 3}
"""
LATE = TWO.replace(":bright", ":late")
REWARDS = """
from pathlib import Path
from spotlight.core.errors import RewardUnavailable

def bright(images, prompts, *, gain):
    return [gain * float(image.mean()) / 255 for image in images]

def late(images, prompts, *, gain):
    if not Path(__file__).with_name("up").exists():
        raise RewardUnavailable("the far judge does not answer")
    return bright(images, prompts, gain=gain)
"""
AWAITED = "the reward 'own_rewards:late' to score"


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "own_rewards.py").write_text(REWARDS)
    made: list[LiveRun] = []

    def start(rewards: str) -> LiveRun:
        made.append(LiveRun(tmp_path, RECIPE + rewards))
        made[0].start()
        return made[0]

    yield start
    for each in made:
        each.close()


def assert_trained_on_the_advantages_of_each(live: LiveRun, second: str, iterations: int) -> None:
    live.check()
    for accepted in live.events(Accepted):
        parts = accepted.components
        assert accepted.reward == math.fsum((3 * parts["jpeg"], 4 * parts[second]))
        assert f"4 {second}(gain=2.0) source " in accepted.scorer
    assert {"reward", "jpeg", second} <= live.events(Evaluated)[0].scores.keys()
    events = [record.event for record in live.records()]
    weights = weights_of(RewardConfig.model_validate(live.config()["reward"]).rewards(""))
    compared = [event for event in events if isinstance(event, Compared)]
    assert [event.iteration for event in compared] == list(range(iterations))
    for event in compared:
        before = RunState.replay(events[: events.index(event)])
        found = decoupled_advantages(
            event.terms,
            weights,
            std_mode=StdMode.LAGGED,
            eps=1e-4,
            lagged_stds={name: lagged.std for name, lagged in before.lagged_terms.items()},
            baselines={},
        )
        assert tuple(tuple(group.advantages.tolist()) for group in found) == event.advantages


def test_run_with_two_rewards_that_is_resumed_between_iterations_keeps_the_scales_of_both(run):
    live = run(TWO)
    assert live.finish() == 0, live.log()
    live.resume("--set", "iterations=3")
    assert live.finish() == 0, live.log()
    assert_trained_on_the_advantages_of_each(live, "own_rewards:bright", 3)


def test_run_of_two_rewards_one_of_them_unavailable_at_first_waits_stops_resumes_and_trains_on_both(run, tmp_path):
    live = run(LATE)
    live.wait_for_event(ProblemNoted)
    waiting = live.wait_for(lambda: AWAITED in str(live.status()["waiting_for"]) and live.status()["waiting_for"])
    assert "the far judge does not answer" in waiting
    for _ in range(2):
        live.interrupt()
    assert live.finish() == 4, live.log()
    assert not live.events(Accepted)
    live.resume()
    live.wait_for(lambda: len(live.events(ProblemNoted)) == 2)
    (tmp_path / "up").touch()
    assert live.finish() == 0, live.log()
    assert_trained_on_the_advantages_of_each(live, "own_rewards:late", 2)
    assert "the far judge does not answer; a run starts all the same" in live.log()
    assert all(math.isfinite(event.reward) for event in live.events(Accepted))
    assert all("'own_rewards:late' cannot score now" in event.problem for event in live.events(ProblemNoted))
    assert live.events(RunStopped)[-1].finished
    assert live.status()["gaps"]["whole"]
