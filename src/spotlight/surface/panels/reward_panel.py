"""Rewards of training samples: the mean of each component by iteration, the spread inside groups, the extremes."""

from collections.abc import Mapping, Sequence

import msgspec

from spotlight.surface.formats import score_name
from spotlight.surface.panels.chart import Chart, ChartLine, finite
from spotlight.surface.projections import RunView
from spotlight.surface.reward_rows import TOTAL, GroupExtremes, RewardRow

MOST_ROWS = 240


class PromptExtremes(msgspec.Struct, frozen=True, kw_only=True):
    """The worst and the best sample of a prompt in the newest iteration."""

    prompt: str
    group: GroupExtremes


class RewardPanel(msgspec.Struct, frozen=True, kw_only=True):
    charts: list[Chart]
    iteration: int | None
    """The newest compared iteration."""
    extremes: list[PromptExtremes]
    flat: int
    """Groups of the newest iteration without any contrast."""
    groups: int


def reward_panel(view: RunView, prompts: Mapping[str, str]) -> RewardPanel:
    rows = [view.rewards.rows[key] for key in sorted(view.rewards.rows)]
    newest = rows[-1] if rows else None
    extremes = [
        PromptExtremes(prompt=prompts.get(one.prompt, one.prompt), group=one)
        for one in view.rewards.extremes
        if one.high > one.low
    ]
    return RewardPanel(
        charts=_charts(rows[-MOST_ROWS:]),
        iteration=newest.iteration if newest else None,
        extremes=extremes,
        flat=newest.flat if newest else 0,
        groups=newest.groups if newest else 0,
    )


def _charts(rows: Sequence[RewardRow]) -> list[Chart]:
    if not rows:
        return []
    names = sorted({name for row in rows for name in row.means}, key=lambda name: (name != TOTAL, name))
    x = [float(row.iteration + 1) for row in rows]
    curves = {name: [finite(row.means.get(name)) for row in rows] for name in names}
    distinct: dict[str, list[float | None]] = {}
    for name, values in curves.items():
        if values not in distinct.values():
            distinct[name] = values
    means = Chart(
        key="reward-components",
        caption="Mean reward by component",
        x_label="iteration",
        x=x,
        lines=[ChartLine(label=score_name(name), values=values) for name, values in distinct.items()],
    )
    spread = Chart(
        key="reward-spread",
        caption="Spread inside groups",
        x_label="iteration",
        x=x,
        lines=[ChartLine(label="standard deviation", values=[row.spread for row in rows])],
    )
    return [means, spread]
