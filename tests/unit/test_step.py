"""The groups of each step, and that a step was trained with what the journal has."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from spotlight.compute.train.config import LOG_PROB_GAP
from spotlight.control.ledger import InvariantBroken
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.setbacks import Setbacks
from spotlight.controller.update import OptimizerSteps, Schedule, Taken
from spotlight.core import messages as m
from spotlight.core.events import Compared, ProblemNoted
from spotlight.core.types import Frontier, Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, Work

PROMPT = Prompt(text="a kite")


def request(work: Work, group: int) -> Request:
    sample = Sample(prompt=PROMPT.id, seed=0, sampling=Sampling(steps=4, size=Size(32, 96)), version=Version(0))
    return Request(work=work, iteration=0, group=group, sample=sample)


def taken(advantage: float, kept: bool = True) -> Taken:
    item = m.TrainItem(request=request(Work.ROLLOUT, 1), prompt=PROMPT, payload="", advantage=advantage, kept=kept)
    return Taken(3, 1, 1, (item,), ((1, 0),), m.Stepped(step=3, digest="theta", figures={}))


@pytest.mark.parametrize(("advantage", "kept"), [(0.5, False), (0.25, True)])
def test_step_trained_with_other_advantages_than_compared_is_not_committed(advantage, kept):
    compared = Compared(iteration=1, rewards=((), (1.0,)), advantages=((), (0.5,)), kept=((), (True,)), problems=())
    taken(0.5).check(compared)
    with pytest.raises(InvariantBroken, match="step 3 trained rollout/0/1/0 with advantage"):
        taken(advantage, kept).check(compared)


def test_rollouts_are_needed_update_by_update_with_parts_and_by_number_without():
    for gap in (True, False):
        schedule = Schedule(updates=2, run_seed=7, pipeline=PipelineConfig(gap=gap), is_fixed=False)
        position = schedule.group_order(6)
        served = sorted(range(6), key=lambda group: position(request(Work.ROLLOUT, group)))
        assert served == ([*schedule.groups(0, 6), *schedule.groups(1, 6)] if gap else list(range(6)))
        # Held-out prompts are no groups of an iteration.
        assert position(request(Work.EVALUATION, 40)) == 40


def test_gap_between_the_log_probs_of_rollout_and_training_raises_one_alarm():
    noted: list[ProblemNoted] = []
    ledger = SimpleNamespace(commit_step=lambda step: None, frontier_after=lambda requests: Frontier())
    hub = SimpleNamespace(dispatcher=SimpleNamespace(setbacks=Setbacks(noted.append), ledger=ledger))
    schedule = Schedule(updates=2, run_seed=7, pipeline=PipelineConfig(), is_fixed=False, gap_allowed=1e-4)
    steps = OptimizerSteps(hub, None, None, schedule)
    compared = Compared(iteration=1, rewards=((), (1.0,)), advantages=((), (0.5,)), kept=((), (True,)), problems=())
    for gap in (9e-5, 2e-3, 2e-3):
        stepped = m.Stepped(step=3, digest="theta", figures={LOG_PROB_GAP: gap})
        steps.commit(replace(taken(0.5), stepped=stepped), compared)
    assert len(noted) == 1
    assert "differ by 0.002 on average" in noted[0].problem
    assert "algorithm.old_log_prob" in noted[0].problem
