"""A reward that scores nothing: one iteration without comparable rewards is allowed, two in a row stop the run."""

import math

import pytest
from dispatch_stories import dispatcher_with
from test_rollout_requests import samples

from spotlight.compute.train.config import AdvantageConfig
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import Rollouts
from spotlight.core.clock import RealClock
from spotlight.core.errors import RewardError
from spotlight.core.events import Accepted
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass, Work

BLIND = math.nan
WORKER = WorkerId("spot-1.1/0.1")


class Run:
    """Iterations with rewards chosen by the test, compared by the real collaborator."""

    def __init__(self) -> None:
        self.dispatcher, _ = dispatcher_with(SlotClass.SPOT)
        self.state = RunState()
        self.made = samples("words-nft", "rollout.prompts=2", "rollout.group_size=2")
        hub = Hub(self.dispatcher, RealClock(), lambda outgoing: None)
        self.rollouts = Rollouts(hub, self.made, self.state, AdvantageConfig(), self.state.apply)

    def iterate(self, iteration: int, *rewards: float) -> None:
        """Two groups of two samples get these rewards, in order."""
        self.rollouts.issue(iteration, None)
        ledger = self.dispatcher.ledger
        requests = ledger.iteration(iteration, Work.ROLLOUT)
        for request, reward in zip(requests, rewards, strict=True):
            attempt = ledger.lease(request.id, WORKER)
            accepted = Accepted(request=request.id, attempt=attempt, worker=WORKER, digest="base", reward=reward)
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
