"""The picture of elastic crews: pictures per dollar of every policy, a dot per trace."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.elastic.figures import POLICIES, Kind, Outcome, of_policy
from benchmarks.lib.plot import save

COLOURS = {Kind.ELASTIC: "#009e73", Kind.RELAUNCH: "#0072b2", Kind.IDLE: "#d55e00", Kind.SINGLE: "#999999"}


def draw(outcomes: Sequence[Outcome], slots: int, title: str, path: Path) -> None:
    works = sorted({each.pictures for each in outcomes})
    picture = Figure(figsize=(5.2 * len(works), 3.9))
    axes = picture.subplots(1, len(works), squeeze=False, sharey=True)
    for axis, pictures in zip(axes[0], works, strict=True):
        for place, policy in enumerate(POLICIES):
            values = [each.per_dollar for each in of_policy(outcomes, policy, pictures)]
            axis.barh(place, statistics.mean(values), color=COLOURS[policy.kind], height=0.7)
            axis.plot(values, [place] * len(values), "o", color="#222222", markersize=3.5)
        axis.set_yticks(range(len(POLICIES)), [policy.label for policy in POLICIES])
        axis.set_xlabel("accepted pictures per dollar")
        axis.set_title(f"{pictures} pictures per round, {slots} slots at most", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].invert_yaxis()
    picture.suptitle(title, fontsize=9)
    save(picture, path)
