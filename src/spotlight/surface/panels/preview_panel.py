"""Exploration: planned and finished previews by iteration, and the variance that the selected seeds captured."""

import math
from collections.abc import Sequence

import msgspec

from spotlight.surface.formats import score
from spotlight.surface.panels.chart import Chart, ChartKind, ChartLine, ChartUnit, finite
from spotlight.surface.projections import ExplorationView, RunView

MOST_BARS = 120
FIGURES = {"captured_variance": "captured variance, at most", "spearman": "rank correlation"}


class PreviewPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The newest plan of the planner."""

    iteration: int
    planned: int
    steps: int
    budget_s: float
    done: int
    selected: int
    fresh: int
    reason: str


class PreviewPanel(msgspec.Struct, frozen=True, kw_only=True):
    charts: list[Chart]
    """Empty if no seed was previewed."""
    finished: int
    discarded: int
    captured: float | None
    """Mean of the captured variance over the iterations that measured it."""
    plan: PreviewPlan | None


def preview_panel(view: RunView) -> PreviewPanel:
    ordered = [view.explorations[key] for key in sorted(view.explorations)]
    seen = [one for one in ordered if one.planned or one.previewed or one.figures]
    fidelity = _fidelity(seen)
    return PreviewPanel(
        charts=[*([_bars(seen)] if seen else []), *([fidelity] if fidelity else [])],
        finished=sum(one.done for one in seen),
        discarded=sum(one.discarded for one in seen),
        captured=mean_figure(seen, "captured_variance"),
        plan=_plan(seen[-1]) if seen else None,
    )


def mean_figure(seen: Sequence[ExplorationView], name: str) -> float | None:
    values = [one.figures[name] for one in seen if math.isfinite(one.figures.get(name, math.nan))]
    return math.fsum(values) / len(values) if values else None


def _plan(one: ExplorationView) -> PreviewPlan:
    return PreviewPlan(
        iteration=one.iteration,
        planned=one.planned,
        steps=one.steps,
        budget_s=one.budget_s,
        done=one.done,
        selected=one.selected,
        fresh=one.fresh,
        reason=one.reason,
    )


def _bars(seen: Sequence[ExplorationView]) -> Chart:
    """Means over bins when there are more iterations than bars."""
    size = -(-len(seen) // MOST_BARS)
    bins = [seen[start : start + size] for start in range(0, len(seen), size)]

    def line(label: str, number: str) -> ChartLine:
        means = [sum(getattr(one, number) for one in members) / len(members) for members in bins]
        return ChartLine(label=label, values=list(means))

    return Chart(
        key="previews",
        caption="Previews by iteration",
        x_label="for iteration",
        x=[float(members[0].iteration) for members in bins],
        lines=[line("finished", "done"), line("cut off", "discarded"), line("planned", "planned")],
        unit=ChartUnit.COUNT,
        kind=ChartKind.BARS,
    )


def _fidelity(seen: Sequence[ExplorationView]) -> Chart | None:
    lines = []
    for name, label in FIGURES.items():
        mean = mean_figure(seen, name)
        if mean is not None:
            values = [finite(one.figures.get(name)) for one in seen]
            lines.append(ChartLine(label=f"{label}, mean {score(mean)}", values=values))
    if not lines:
        return None
    return Chart(
        key="fidelity",
        caption="Fidelity of previews",
        x_label="for iteration",
        x=[float(one.iteration) for one in seen],
        lines=lines,
        unit=ChartUnit.SHARE,
    )
