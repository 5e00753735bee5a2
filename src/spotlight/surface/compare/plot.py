"""The curves of a comparison as a picture: score against hours, and against dollars."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.core.errors import InputError
from spotlight.surface.compare.curve import Curve, CurvePoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES: tuple[tuple[str, Callable[[CurvePoint], float]], ...] = (
    ("hours", lambda point: point.hours),
    ("dollars, priced as if {prices}", lambda point: point.dollars),
)

COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C9", "C8")
"""Without grey, which is the baseline's."""


def draw(curves: Sequence[Curve], baseline: str, title: str, path: Path, prices: str) -> None:
    """Draw a thin line per run and a thick one per setup: the mean over its seeds at each iteration.

    `prices` is the name of the price table.
    """
    if path.suffix.lower() != ".png":
        raise InputError(f"the picture {path} is not named as a PNG, which is all that is written; end it in .png.")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(11, 4.2), sharey=True)
    for axes, (name, value) in zip(panels, AXES, strict=True):
        _panel(axes, curves, baseline, value)
        axes.set_xlabel(name.format(prices=prices))
        axes.set_xlim(left=0)
    panels[0].set_ylabel(f"held-out {curves[0].score}", parse_math=False)
    panels[0].legend(frameon=False, loc="lower right")
    figure.suptitle(title, parse_math=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def mean_curve(runs: Sequence[Curve]) -> list[CurvePoint]:
    """Mean over runs at the iterations that all of them evaluated."""
    by_iteration = [{point.iteration: point for point in curve.points} for curve in runs]
    shared = sorted(set.intersection(*(set(points) for points in by_iteration)))
    return [
        CurvePoint(
            iteration=iteration,
            hours=_mean([points[iteration].hours for points in by_iteration]),
            dollars=_mean([points[iteration].dollars for points in by_iteration]),
            score=_mean([points[iteration].score for points in by_iteration]),
        )
        for iteration in shared
    ]


def _panel(axes: "Axes", curves: Sequence[Curve], baseline: str, value: Callable[[CurvePoint], float]) -> None:
    for number, setup in enumerate(dict.fromkeys(curve.setup for curve in curves)):
        runs = [curve for curve in curves if curve.setup == setup]
        colour = "0.35" if setup == baseline else COLOURS[number % len(COLOURS)]
        if len(runs) > 1:
            for curve in runs:
                axes.plot(*_line(curve.points, value), color=colour, alpha=0.35, linewidth=0.8)
        axes.plot(*_line(mean_curve(runs), value), color=colour, linewidth=2.2, label=setup)
    final = [curve.final for curve in curves if curve.setup == baseline]
    if final:
        axes.axhline(_mean(final), color="0.35", linestyle=":", linewidth=1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _line(points: Sequence[CurvePoint], value: Callable[[CurvePoint], float]) -> tuple[list[float], list[float]]:
    return [value(point) for point in points], [point.score for point in points]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
