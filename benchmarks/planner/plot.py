"""The picture of the planner: payoff by iteration of the bandit, of the best fixed plan, and of all others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from benchmarks.planner.figures import ALL, Compared
from benchmarks.planner.run import Run

PANELS_PER_ROW = 3


def draw(compared: Sequence[Compared], path: Path) -> None:
    rows = -(-len(compared) // PANELS_PER_ROW)
    columns = min(len(compared), PANELS_PER_ROW)
    picture = Figure(figsize=(4.6 * columns, 3.9 * rows), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(compared) :]:
        panel.set_axis_off()
    for panel, each in zip(panels, compared, strict=False):
        best = each.best(each.iterations)
        for runs in each.fixed.values():
            panel.plot(ALL, _smoothed(runs), color="0.85", linewidth=0.8, zorder=1)
        panel.plot(ALL, _smoothed(each.fixed[best]), color="#4477aa", linewidth=2, label=f"best fixed: {best}")
        panel.plot(ALL, _smoothed(each.bandit), color="#cc3311", linewidth=2, label="bandit")
        panel.set_title(each.workload.title, fontsize=9)
        panel.set_xticks([1, 5, 10, 15, 20])
        panel.set_xlabel("iteration")
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    picture.supylabel("payoff (1: no previews), mean of 3 iterations; grey: other fixed plans", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def _smoothed(runs: Sequence[Run]) -> list[float]:
    mean = np.mean([each.payoffs for each in runs], axis=0)
    return [float(mean[max(ALL[0], number - 1) : number + 2].mean()) for number in ALL]
