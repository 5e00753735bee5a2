"""The groups of each step, and that a step was trained with what the journal has."""

import pytest

from spotlight.control.ledger import InvariantBroken
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.controller.update import Schedule, Taken
from spotlight.core import messages as m
from spotlight.core.events import Compared
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
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
