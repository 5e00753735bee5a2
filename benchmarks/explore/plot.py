"""The picture of exploration: a column per experiment, held-out reward of both arms, below it the audits' findings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.explore.figures import Arm, ArmResult, experiments, final_score, prefix_of, shortened
from benchmarks.lib.plot import band, save

COLOURS = {Arm.PLAIN: "#0072b2", Arm.EXPLORE: "#d55e00", Arm.OVERSAMPLE: "#009e73", Arm.WHOLE: "#999999"}
LABELS = {
    Arm.PLAIN: "without exploration",
    Arm.EXPLORE: "with exploration",
    Arm.OVERSAMPLE: "chosen among finished rollouts",
    Arm.WHOLE: "trained on all of these rollouts",
}
AUDITED = {"captured_variance": "#009e73", "spearman": "#cc79a7"}

Curves = Sequence[Sequence[tuple[int, float]]]


def draw(results: Sequence[ArmResult], path: Path, until: Mapping[str, int]) -> None:
    names = experiments(results)
    picture = Figure(figsize=(5.5 * len(names), 6.5))
    axes = picture.subplots(2, len(names), squeeze=False, height_ratios=(2, 1))
    for column, name in enumerate(names):
        runs = [run for run in results if run.label == name]
        _draw_rewards(axes[0][column], name, runs, until.get(prefix_of(runs[0])))
        _draw_audits(axes[1][column], [run for run in runs if run.audits])
    picture.suptitle(f"line: mean, band: lowest to highest seed; {results[0].hardware}", fontsize=9)
    save(picture, path)


def _draw_rewards(axis: Any, title: str, runs: Sequence[ArmResult], until: int | None) -> None:
    for arm in Arm:
        own = [run for run in runs if run.arm is arm]
        if own:
            label = f"{LABELS[arm]} ({len(own)} {'seed' if len(own) == 1 else 'seeds'})"
            _band(axis, [[(p.iteration, p.reward) for p in run.points] for run in own], COLOURS[arm], label)
    plain = [final_score(shortened(run, until)) for run in runs if run.arm is Arm.PLAIN]
    if plain:
        axis.axhline(float(np.mean(plain)), color=COLOURS[Arm.PLAIN], linestyle=":", linewidth=1)
    axis.set_title(title)
    axis.set_ylabel("held-out reward")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8, loc="lower right")


def _draw_audits(axis: Any, runs: Sequence[ArmResult]) -> None:
    if not runs:
        axis.axis("off")
        return
    for name, colour in AUDITED.items():
        curves = [[(a.iteration, a.figures[name]) for a in run.audits if name in a.figures] for run in runs]
        curves = [curve for curve in curves if curve]
        if curves:
            _band(axis, curves, colour, name.replace("_", " "))
            axis.legend(frameon=False, fontsize=8, loc="lower right")
    axis.set_ylim(0, 1)
    axis.set_xlabel("iteration")
    axis.set_ylabel("audit")
    axis.grid(alpha=0.3)


def _band(axis: Any, curves: Curves, colour: str, label: str) -> None:
    """Draw a band over the iterations that all runs have."""
    shortest = min(len(curve) for curve in curves)
    iterations = [iteration for iteration, _ in curves[0][:shortest]]
    band(axis, iterations, [[value for _, value in curve[:shortest]] for curve in curves], colour, label=label)
