"""Missing samples, groups and evaluations are counted and named, and the run is never called complete."""

import math

import pytest

from spotlight.control.ledger.gaps import Gaps
from spotlight.core.events import Accepted, AnyEvent, Compared, Dropped, Evaluated, Previewed, Reopened
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import RequestId

ROLLOUT, PICTURE = RequestId("rollout/0/1/7"), RequestId("evaluation/0/0/0")
CLEAN = "Clean: nothing lost, nothing doubled, every invariant holds."


def accepted(request: RequestId, reward: float, problem: str = "") -> Accepted:
    return Accepted(
        request=request, attempt=1, worker=WorkerId("w"), digest="base", reward=reward, components={}, problem=problem
    )


def compared(*kept: tuple[bool, ...]) -> Compared:
    zeros = tuple(tuple(0.0 for _ in group) for group in kept)
    return Compared(iteration=0, rewards=zeros, advantages=zeros, kept=kept)


def seen(*events: AnyEvent) -> Gaps:
    gaps = Gaps()
    for event in events:
        gaps.count(event)
    return gaps


def test_run_without_gaps_is_clean_and_whole() -> None:
    gaps = seen(accepted(ROLLOUT, 0.5), compared((True, True)), Evaluated(iteration=0, scores={"reward": (1, 1, 1)}))
    assert gaps.whole
    assert gaps.sentences() == []
    assert gaps.verdict() == CLEAN


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (compared((True, True), (False, False), (False, True)), "1 of 3 groups not trained"),
        (Evaluated(iteration=4, scores={}), "no held-out score after iteration 4"),
    ],
)
def test_missing_group_or_evaluation_is_incomplete_and_not_clean(event: AnyEvent, sentence: str) -> None:
    gaps = seen(event)
    assert not gaps.whole
    assert gaps.verdict() == f"INCOMPLETE: nothing was lost or doubled, but {sentence}."
    assert "Clean" not in gaps.verdict()


def test_single_samples_that_are_missing_are_counted_by_kind_with_their_reasons() -> None:
    gaps = seen(
        Dropped(request=ROLLOUT, reason="failed 3 times, last: no such letter"),
        accepted(PICTURE, math.nan, "the reward 'mine:f' raised KeyError"),
        Previewed(iteration=1, steps=2, version=Version(0), groups=(0, 0), seeds=(1, 2), rewards=(0.5, math.nan)),
    )
    assert gaps.whole
    assert gaps.sentences() == [
        "Missing: 1 samples dropped (1 rollout); 1 samples without a score (1 evaluation); 1 previews without a score.",
        "Reason of 1: failed 3 times, last: no such letter",
        "Reason of 1: the reward 'mine:f' raised KeyError",
    ]
    assert gaps.verdict().startswith(CLEAN.rstrip("."))
    assert "1 samples dropped" in gaps.verdict()


@pytest.mark.parametrize("after", [accepted(PICTURE, 0.5), Reopened(request=PICTURE, reason="it has no score")])
def test_sample_that_is_scored_or_made_again_is_missing_no_longer(after: AnyEvent) -> None:
    assert not seen(accepted(PICTURE, math.nan, "down"), after).exist
