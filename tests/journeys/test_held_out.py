"""Held-out evaluations of a run in the journal."""

import numpy as np
import pytest
from story import Story

from spotlight.compute.scores import estimate
from spotlight.core.events import Accepted, Evaluated, Issued
from spotlight.core.work import Work


def test_evaluation_of_few_prompts_is_recorded_with_an_interval_over_prompts_not_pictures():
    """12 pictures of `scenes` show 11 prompts: single_object has one, which is drawn twice."""
    with Story(model={"name": "scenes"}, eval={"every": 10, "prompts": 12, "steps": 2}) as story:
        story.end()
        requests = [r for event in story.recorded(Issued) for r in event.requests if r.work is Work.EVALUATION]
        reward = {event.request: event.reward for event in story.recorded(Accepted)}
        for evaluated in story.recorded(Evaluated):
            drawn = [request for request in requests if request.iteration == evaluated.iteration]
            rewards, prompts = np.array([reward[r.id] for r in drawn]), [r.sample.prompt for r in drawn]
            assert len(set(prompts)) < len(prompts) == 12
            assert evaluated.scores["reward"] == pytest.approx(tuple(vars(estimate(rewards, prompts)).values()))
            assert evaluated.scores["reward"] != pytest.approx(tuple(vars(estimate(rewards)).values()))
