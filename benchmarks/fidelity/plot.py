"""The picture of fidelity: every counted iteration, real and simulated."""

from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.fidelity.figures import Runs
from benchmarks.lib.plot import save

TITLES = {
    "cpu": "words-nft really trains, 1 + 1 processes",
    "paced": "4 + 8 slots, paced",
    "trace": "4 + 8 slots, paced, nodes killed",
}


def draw(found: Runs, path: Path) -> None:
    picture = Figure(figsize=(4.4 * len(found), 3.8))
    axes = picture.subplots(1, len(found), squeeze=False)
    for axis, (kind, pairs) in zip(axes[0], found.items(), strict=True):
        for pair in pairs:
            line = axis.plot(pair.real.iterations, "o-", ms=4, lw=1, label=f"real, seed {pair.seed}")[0]
            axis.plot(pair.simulated.iterations, "x--", ms=5, lw=1, color=line.get_color(), label="simulated")
        axis.set_title(TITLES[kind], fontsize=9)
        axis.set_xlabel("iteration after the warm-up")
        axis.set_ylabel("seconds of the profile")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, ncols=2, frameon=False)
    save(picture, path)
