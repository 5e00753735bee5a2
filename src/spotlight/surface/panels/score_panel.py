"""Held-out scores over the iterations, each with its 95 % interval."""

from collections.abc import Sequence

import msgspec

from spotlight.surface.formats import score, score_name
from spotlight.surface.panels.chart import Chart, ChartLine
from spotlight.surface.projections import RunView, ScoreInterval

JUDGE = "judge"
SHOWN = 4


class ScorePanel(msgspec.Struct, frozen=True, kw_only=True):
    """Curves of the held-out scores, the headline first."""

    charts: list[Chart]
    trained_on: int
    """Number of held-out prompts that are also trained on."""
    has_stopped: bool


def score_panel(view: RunView, trained_on: int = 0) -> ScorePanel:
    """The headline, the reward, the second judge, then the others; equal curves are shown once."""
    headline = view.headline()
    names = {name for evaluation in view.evaluations for name in evaluation.scores}
    ordered = sorted(names, key=lambda name: (name != headline, name != "reward", name != JUDGE, name))
    curves: dict[str, list[tuple[int, ScoreInterval]]] = {}
    for name in ordered:
        curve = view.curve(name)
        if curve not in curves.values():
            curves[name] = curve
    charts = [_chart(name, curve) for name, curve in list(curves.items())[:SHOWN]]
    return ScorePanel(charts=charts, trained_on=trained_on, has_stopped=view.facts.stopped is not None)


def _chart(name: str, curve: Sequence[tuple[int, ScoreInterval]]) -> Chart:
    caption = f"{score_name(name)}: {score(curve[0][1].value)}"
    caption += f" → {score(curve[-1][1].value)}" if len(curve) > 1 else ""
    line = ChartLine(
        label=score_name(name),
        values=[point.value for _, point in curve],
        low=[point.low for _, point in curve],
        high=[point.high for _, point in curve],
    )
    return Chart(
        key=f"score-{name}",
        caption=caption[:1].upper() + caption[1:],
        x_label="iterations trained",
        x=[iteration for iteration, _ in curve],
        lines=[line],
    )


def gain_sentence(name: str, curve: Sequence[tuple[int, ScoreInterval]]) -> str:
    """A sentence such as `exact match rose from 0.40 to 0.61`, or that the change is within the error."""
    first, last = curve[0][1], curve[-1][1]
    what = f"held-out {score_name(name)}"
    if len(curve) == 1:
        return f"{what} is {score(first.value)} so far"
    change = f"from {score(first.value)} to {score(last.value)}"
    if not last.differs_from(first):
        return f"{what} went {change}, a change within the error"
    return f"{what} {'rose' if last.value > first.value else 'fell'} {change}"
