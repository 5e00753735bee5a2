"""Loss, gradient norm and KL over the optimizer steps."""

from collections.abc import Sequence

import msgspec

from spotlight.surface.panels.chart import Chart, ChartLine, ChartUnit, binned
from spotlight.surface.projections import RunView
from spotlight.surface.training_figures import SHOWN

CAPTIONS = {"loss": "Loss", "grad_norm": "Gradient norm", "kl": "KL to the base model"}


class TrainingPanel(msgspec.Struct, frozen=True, kw_only=True):
    charts: list[Chart]
    """Empty if no step has figures, as in simulations with drawn rewards."""


def training_panel(view: RunView) -> TrainingPanel:
    curves = {name: view.training.curve(name) for name in SHOWN}
    return TrainingPanel(charts=[_chart(name, curve) for name, curve in curves.items() if curve])


def _chart(name: str, curve: Sequence[tuple[int, float]]) -> Chart:
    points = binned(curve)
    return Chart(
        key=f"training-{name}",
        caption=f"{CAPTIONS[name]}: {curve[0][1]:.3g} → {curve[-1][1]:.3g}",
        x_label="optimizer steps",
        x=[step for step, _ in points],
        lines=[ChartLine(label=CAPTIONS[name], values=[value for _, value in points])],
        unit=ChartUnit.NUMBER,
    )
