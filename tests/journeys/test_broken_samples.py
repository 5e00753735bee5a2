"""Samples that cannot be made or judged: the run says so and goes on with the others."""

from story import Story

from spotlight.core.events import Accepted, Compared, Dropped, Evaluated, StepCommitted
from spotlight.core.work import RequestId

FIRST, SECOND = RequestId("evaluation/0/0/0"), RequestId("evaluation/0/1/1")
ROLLOUT = RequestId("rollout/0/0/0")


def test_held_out_picture_without_reward_counts_for_nothing() -> None:
    with Story() as story:
        story.fate.unscorable = {FIRST}
        story.end()
        (score, _, _) = story.said(Evaluated, iteration=0)[0].scores["reward"]
        assert score == story.said(Accepted, request=SECOND)[0].reward


def test_held_out_picture_that_cannot_be_made_is_dropped_and_the_rest_scored() -> None:
    with Story() as story:
        story.fate.impossible = {FIRST}
        story.end()
        assert [event.request for event in story.said(Dropped)] == [FIRST]
        (score, _, _) = story.said(Evaluated, iteration=0)[0].scores["reward"]
        assert score == story.said(Accepted, request=SECOND)[0].reward


def test_evaluation_without_any_reward_has_no_score_and_stops_nothing() -> None:
    with Story() as story:
        story.fate.unscorable, story.fate.impossible = {FIRST}, {SECOND}
        story.end()
        assert story.said(Evaluated, iteration=0)[0].scores == {}


def test_rollout_that_cannot_be_made_is_dropped_and_its_group_trains_without_it() -> None:
    with Story() as story:
        story.fate.impossible = {ROLLOUT}
        story.end()
        assert [event.request for event in story.said(Dropped)] == [ROLLOUT]
        assert story.said(Compared)[0].kept[0] == (False, True, True)
        assert ROLLOUT not in story.said(StepCommitted)[0].requests
        assert len(story.said(StepCommitted)[0].requests) == 5


def test_rollout_without_reward_is_not_learned_from() -> None:
    with Story() as story:
        story.fate.unscorable = {ROLLOUT}
        story.end()
        compared = story.said(Compared)[0]
        assert (compared.kept[0][0], compared.advantages[0][0]) == (False, 0.0)
