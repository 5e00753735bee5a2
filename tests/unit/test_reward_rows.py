"""Rewards of training samples by iteration: means over what was compared, each sample once."""

import math

import pytest
from ledger_stories import grid, issued

from spotlight.core.events import Accepted, AnyEvent, Compared, Dropped, Reopened
from spotlight.core.work import Request
from spotlight.surface.reward_rows import RewardView

GROUPS = grid(2, 3)


def made(request: Request, reward: float, **components: float) -> Accepted:
    return Accepted(request=request.id, attempt=1, worker="w", digest="d", reward=reward, components=components)


def compared(iteration: int = 0) -> Compared:
    return Compared(iteration=iteration, rewards=(), advantages=(), kept=())


def folded(*events: AnyEvent) -> RewardView:
    view = RewardView()
    for event in (issued(GROUPS, range(2)), *events):
        view.apply(event)
    return view


def test_iteration_has_the_mean_of_each_component_and_the_spread_inside_groups():
    rewards = (0.0, 0.5, 1.0, 0.5, 0.5, 0.5)
    view = folded(
        *(made(one, reward, exact=float(reward == 1.0)) for one, reward in zip(GROUPS, rewards, strict=True)),
        compared(),
    )
    row = view.rows[0]
    assert row.means == {"reward": 0.5, "exact": pytest.approx(1 / 6)}
    assert row.spread == pytest.approx(math.sqrt(1 / 6) / 2)
    assert (row.groups, row.flat) == (2, 1)
    assert [(one.low, one.high) for one in view.extremes] == [(0.0, 1.0), (0.5, 0.5)]
    assert view.extremes[0].high_seed == GROUPS[2].sample.seed
    assert view.scored == {}


def test_sample_that_is_made_again_counts_once_and_one_without_a_score_does_not():
    view = folded(
        made(GROUPS[0], 0.2),
        Reopened(request=GROUPS[0].id, reason="its file is lost"),
        made(GROUPS[0], 0.4),
        made(GROUPS[1], math.nan),
        made(GROUPS[2], 0.8),
        Dropped(request=GROUPS[2].id, reason="it always fails"),
        compared(),
    )
    assert view.rows[0].means == {"reward": 0.4}
    assert view.rows[0].spread is None


def test_iteration_that_is_under_way_has_no_row_yet():
    assert folded(made(GROUPS[0], 0.2)).rows == {}
