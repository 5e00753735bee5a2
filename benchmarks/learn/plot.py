"""The picture of learning curves: held-out reward and strict score against iterations."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.learn.figures import SeedResult, labels, of_label
from benchmarks.lib.plot import band, save

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
TITLES = {"reward": "held-out reward (graded)", "strict": "held-out strict score"}


def draw(results: Sequence[SeedResult], path: Path) -> None:
    """One band per loss, from the lowest to the highest seed."""
    picture = Figure(figsize=(11, 4))
    axes = picture.subplots(1, 2, sharex=True)
    for colour, label in zip(COLOURS, labels(results), strict=False):
        runs = of_label(results, label)
        shortest = min(len(run.points) for run in runs)
        iterations = [point.iteration for point in runs[0].points[:shortest]]
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        for axis, field in zip(axes, TITLES, strict=True):
            curves = [[getattr(point, field) for point in run.points[:shortest]] for run in runs]
            band(axis, iterations, curves, colour, label=f"{label} ({seeds})")
        judged = [(point.iteration, point.judge) for point in runs[0].points if point.judge is not None]
        if judged and runs[0].family != "scenes":
            judge = {"markersize": 4, "alpha": 0.8, "label": f"{label}, second recogniser"}
            axes[1].plot(*zip(*judged, strict=True), "o--", color=colour, **judge)
    for axis, title in zip(axes, TITLES.values(), strict=True):
        axis.set_title(title)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.set_ylim(top=1.0)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    picture.suptitle(f"band: lowest to highest seed; {results[0].hardware}", fontsize=9)
    save(picture, path)
