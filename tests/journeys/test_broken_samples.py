"""Samples that cannot be made or scored: the run records them and continues with the others."""

import pytest
from story import COMMIT_EVERY, Story

from spotlight.core.errors import RewardError, SpotlightError
from spotlight.core.events import (
    Accepted,
    Compared,
    Dropped,
    Evaluated,
    Refused,
    Released,
    Reopened,
    StepCommitted,
    WorkerLost,
)
from spotlight.core.work import ReleaseReason, RequestId

FIRST, SECOND = RequestId("evaluation/0/0/0"), RequestId("evaluation/0/1/1")
ROLLOUT = RequestId("rollout/0/0/0")


def test_held_out_picture_without_reward_is_left_out_of_the_score() -> None:
    with Story() as story:
        story.policy.unscorable = {FIRST}
        story.end()
        (score, _, _) = story.recorded(Evaluated, iteration=0)[0].scores["reward"]
        assert score == story.recorded(Accepted, request=SECOND)[0].reward


def test_held_out_picture_that_cannot_be_made_is_dropped_and_the_rest_scored() -> None:
    with Story() as story:
        story.policy.impossible = {FIRST}
        story.end()
        assert [event.request for event in story.recorded(Dropped)] == [FIRST]
        (score, _, _) = story.recorded(Evaluated, iteration=0)[0].scores["reward"]
        assert score == story.recorded(Accepted, request=SECOND)[0].reward


def test_evaluation_without_any_reward_has_no_score_and_does_not_stop_the_run() -> None:
    with Story() as story:
        story.policy.unscorable, story.policy.impossible = {FIRST}, {SECOND}
        story.end()
        assert story.recorded(Evaluated, iteration=0)[0].scores == {}


def test_rollout_that_cannot_be_made_is_dropped_and_its_group_trains_without_it() -> None:
    with Story() as story:
        story.policy.impossible = {ROLLOUT}
        story.end()
        assert [event.request for event in story.recorded(Dropped)] == [ROLLOUT]
        assert story.recorded(Compared)[0].kept[0] == (False, True, True)
        assert ROLLOUT not in story.recorded(StepCommitted)[0].requests
        assert len(story.recorded(StepCommitted)[0].requests) == 5


def test_rollout_without_reward_is_scored_once_more_then_kept_unscored_and_not_learned_from() -> None:
    with Story() as story:
        story.policy.unscorable = {ROLLOUT}
        report = story.end()
        compared = story.recorded(Compared)[0]
        assert (compared.kept[0][0], compared.advantages[0][0]) == (False, 0.0)
        (released,) = story.recorded(Released, request=ROLLOUT, reason=ReleaseReason.UNSCORED)
        assert released.redone <= COMMIT_EVERY, "the second attempt resumes at the newest commit"
        assert report.gaps.unscored == {ROLLOUT: "the reward raised at a picture."}
        assert report.whole, "its group was trained without it"


def test_rollout_that_a_second_attempt_can_score_is_learned_from() -> None:
    with Story() as story:
        story.policy.unscorable = {ROLLOUT}
        story.until(lambda: story.recorded(Released, request=ROLLOUT))
        story.policy.unscorable = set()
        report = story.end()
        assert story.recorded(Compared)[0].kept[0][0]
        assert not report.gaps.exist


def test_evaluation_that_has_no_score_leaves_the_run_incomplete() -> None:
    with Story() as story:
        story.policy.unscorable = {FIRST, SECOND}
        report = story.end()
        assert report.clean
        assert not report.whole
        assert "INCOMPLETE" in report.sentences()[-1]


def test_reward_that_scores_no_sample_stops_the_run_and_resume_scores_the_kept_samples() -> None:
    held_out = {RequestId(f"evaluation/0/{n}/{n}") for n in range(8)}
    with Story(eval={"every": 10, "prompts": 8, "steps": 2}) as story:
        story.policy.unscorable = set(held_out)
        with pytest.raises(RewardError, match="none of the 8 held-out pictures of iteration 0 has a score"):
            story.until(lambda: story.recorded(Evaluated))
        assert not story.recorded(StepCommitted, iteration=1), "training went on without scores"
        story.policy.unscorable = set()
        story.resume()
        report = story.end()
        assert {event.request for event in story.recorded(Reopened)} == held_out
        assert story.recorded(Evaluated, iteration=0)[0].scores
        assert report.whole


def test_iteration_whose_samples_are_all_given_up_names_their_cause_and_not_the_reward() -> None:
    class Rollouts(set[str]):
        def __contains__(self, request: object) -> bool:
            return str(request).startswith("rollout/0/")

    with Story(rollout={"prompts": 2, "group_size": 4, "steps": 6}) as story:
        story.policy.impossible = Rollouts()
        with pytest.raises(SpotlightError, match=r"every sample of update 0 of iteration 0 was given up \(") as caught:
            story.until(lambda: story.recorded(StepCommitted))
        assert not isinstance(caught.value, RewardError)
        assert len(story.recorded(Dropped)) == 8


def test_worker_that_uses_other_weights_than_it_claims_is_replaced_and_none_of_its_samples_is_trained_on() -> None:
    with Story() as story:
        story.until(lambda: story.world.nodes["spot-1"].worker_ids())
        confused = story.worker("spot-1")
        story.policy.confused = {confused}
        report = story.end()
        assert {event.worker for event in story.recorded(Refused)} == {confused}
        assert story.recorded(WorkerLost, worker=confused), "the controller ended it"
        assert report.clean
        assert not report.gaps.exist
