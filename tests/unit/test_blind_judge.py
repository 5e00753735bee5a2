"""A reward that scores nothing stops the run at the second iteration in a row; a constant one raises an alarm."""

import math

import pytest
from dispatch_stories import dispatcher_with
from test_rollout_requests import samples

from spotlight.compute.train.config import AdvantageConfig
from spotlight.control.advantage import Combine
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import ONE_REWARD, Rollouts, RunRewards
from spotlight.core.clock import RealClock
from spotlight.core.errors import RewardError
from spotlight.core.events import Accepted
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass, Work

BLIND = math.nan
WORKER = WorkerId("spot-1.1/0.1")


class Run:
    """Iterations with rewards chosen by the test, compared by the real collaborator."""

    def __init__(self, rewards: RunRewards = ONE_REWARD) -> None:
        self.dispatcher, _ = dispatcher_with(SlotClass.SPOT)
        self.state = RunState()
        self.made = samples("words-nft", "rollout.prompts=2", "rollout.group_size=2")
        hub = Hub(self.dispatcher, RealClock(), lambda outgoing: None)
        self.rollouts = Rollouts(hub, self.made, self.state, AdvantageConfig(), self.state.apply, rewards=rewards)

    def iterate(self, iteration: int, *rewards: float, **terms: tuple[float, ...]) -> None:
        """Two groups of two samples get these rewards, in order, and these scores by each of several rewards."""
        self.rollouts.issue(iteration, None)
        ledger = self.dispatcher.ledger
        requests = ledger.iteration(iteration, Work.ROLLOUT)
        for number, (request, reward) in enumerate(zip(requests, rewards, strict=True)):
            attempt = ledger.lease(request.id, WORKER)
            components = {name: scores[number] for name, scores in terms.items()}
            accepted = Accepted(
                request=request.id, attempt=attempt, worker=WORKER, digest="base", reward=reward, components=components
            )
            assert ledger.accept(accepted, "base") is None
        self.rollouts.compare(iteration)


def test_second_iteration_in_a_row_without_two_rewards_in_any_group_stops_the_run_with_a_reason() -> None:
    run = Run()
    run.iterate(0, BLIND, BLIND, BLIND, BLIND)
    run.dispatcher.setbacks.unscored_for = "the far judge does not answer"
    with pytest.raises(RewardError, match=r"iterations 0 and 1 .*the far judge does not answer.*repair the reward"):
        run.iterate(1, BLIND, 0.5, BLIND, 0.5)
    assert 1 not in run.state.compared, "nothing of the blind iteration is learned from"


def test_one_unscored_iteration_between_others_does_not_stop_the_run() -> None:
    run = Run()
    for iteration in range(6):
        rewards = (BLIND, BLIND, BLIND, BLIND) if iteration % 2 else (BLIND, BLIND, 0.25, 0.75)
        run.iterate(iteration, *rewards)
    assert sorted(run.state.compared) == list(range(6))
    assert not any(any(group) for group in run.state.compared[1].kept)
    assert run.state.compared[2].kept[1] == (True, True)


def test_reward_that_is_constant_over_an_iteration_raises_an_alarm_with_its_name_and_score() -> None:
    run = Run(RunRewards(first="ocr"))
    run.iterate(0, 0.5, 0.5, 0.5, BLIND)
    (problem,) = run.dispatcher.setbacks.problems
    assert "constant over all samples of iteration 0: the reward 'ocr' is 0.5" in problem
    assert "check that the reward loads the right weights" in problem
    run.iterate(1, 0.5, 0.5, 0.5, 0.5)
    assert len(run.dispatcher.setbacks.problems) == 1, "not repeated while it lasts"
    run.iterate(2, 0.5, 0.75, 0.5, 0.5)
    run.iterate(3, 0.5, 0.5, 0.5, 0.5)
    assert len(run.dispatcher.setbacks.problems) == 2


def test_rewards_that_are_constant_within_groups_only_raise_no_alarm() -> None:
    run = Run(RunRewards(first="ocr"))
    run.iterate(0, 0.5, 0.5, 0.25, 0.25)
    assert run.dispatcher.setbacks.problems == []


def test_one_constant_reward_of_two_is_named_alone() -> None:
    run = Run(RunRewards({"ocr": 1.0, "jpeg": 1.0}, Combine.SUM, "ocr"))
    run.iterate(0, 1.0, 1.25, 1.5, 1.75, ocr=(0.0, 0.25, 0.5, 0.75), jpeg=(1.0, 1.0, 1.0, 1.0))
    (problem,) = run.dispatcher.setbacks.problems
    assert "the reward 'jpeg' is 1, so" in problem


def test_two_rewards_with_separate_advantages_train_on_both_and_lag_separately() -> None:
    run = Run(RunRewards({"a": 1.0, "b": 1.0}, Combine.GDPO, "a"))
    assert not run.rollouts.has_scale(0)
    run.iterate(0, 100.0, 101.0, 0.0, 0.0, a=(100.0, 100.0, 0.0, 0.0), b=(0.0, 1.0, 0.0, 0.0))
    assert not run.rollouts.has_scale(1), "one of the two has had no contrast so far"
    run.iterate(1, 0.0, 101.0, 0.0, 0.0, a=(0.0, 100.0, 0.0, 0.0), b=(0.0, 1.0, 0.0, 0.0))
    assert run.rollouts.has_scale(2)
    lagged = {name: std.std for name, std in run.state.lagged_terms.items()}
    assert lagged["a"] == pytest.approx(100 * lagged["b"], rel=0.5)
    run.iterate(2, 0.0, 100.0, 0.0, 1.0, a=(0.0, 100.0, 0.0, 0.0), b=(0.0, 0.0, 0.0, 1.0))
    (_, large), (_, small) = run.state.compared[2].advantages
    assert large == pytest.approx(small, rel=0.5), "both count, though one is a hundred times larger"
    assert run.state.compared[2].terms["b"] == ((0.0, 0.0), (0.0, 1.0))
