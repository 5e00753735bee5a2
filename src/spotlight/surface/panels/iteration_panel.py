"""The iterations as a table, and the newest lines of what happened."""

import msgspec

from spotlight.surface.feed_lines import FeedLine
from spotlight.surface.panels.chart import finite
from spotlight.surface.projections import IterationView, RunView

MOST_ROWS = 60
"""Largest number of iterations in the table; longer runs show the first and the last."""


class IterationLine(msgspec.Struct, frozen=True, kw_only=True):
    iteration: int
    rollout_s: float
    train_s: float
    reward: float | None
    previews: int | None
    """None if nothing was explored."""
    captured: float | None


class IterationPanel(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[IterationLine]
    done: int


class FeedPanel(msgspec.Struct, frozen=True, kw_only=True):
    lines: list[FeedLine]
    """The newest, in the order of the journal."""


def iteration_panel(view: RunView) -> IterationPanel:
    shown = view.iterations
    if len(shown) > MOST_ROWS:
        shown = [*shown[: MOST_ROWS // 2], *shown[-MOST_ROWS // 2 :]]
    return IterationPanel(lines=[_line(view, one) for one in shown], done=len(view.iterations))


def feed_panel(view: RunView) -> FeedPanel:
    return FeedPanel(lines=list(view.feed))


def _line(view: RunView, one: IterationView) -> IterationLine:
    explored = view.explorations.get(one.iteration)
    return IterationLine(
        iteration=one.iteration,
        rollout_s=one.rollout_s,
        train_s=one.train_s,
        reward=finite(one.reward),
        previews=explored.done if explored else None,
        captured=finite(explored.figures.get("captured_variance")) if explored else None,
    )
