"""What the benchmark of fidelity found: runs and their simulations by kind and seed, as figures and a picture."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.console import Console
from rich.table import Table

LIMITS = {"cpu": 0.05, "paced": 0.05, "trace": 0.10}
TITLES = {
    "cpu": "words-nft really trains, 1 + 1 processes",
    "paced": "4 + 8 slots, paced",
    "trace": "4 + 8 slots, paced, nodes killed",
}


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run, real or simulated; in seconds of the profile."""

    iterations: tuple[float, ...]
    """Without the warm-up."""
    rollout: float
    train: float
    """Medians of these."""
    losses: int
    """Nodes, while these ran."""

    @property
    def iteration(self) -> float:
        return statistics.median(self.iterations)

    @property
    def total(self) -> float:
        return sum(self.iterations)


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its simulation."""

    seed: int
    commit: str
    profile: str
    """Name and digest of what the simulation took its durations from."""
    real: Timing
    simulated: Timing

    @property
    def iteration_error(self) -> float:
        return self.simulated.iteration / self.real.iteration - 1

    @property
    def total_error(self) -> float:
        return self.simulated.total / self.real.total - 1


Runs: TypeAlias = dict[str, list[Pair]]
"""By kind; one for each seed."""


def show(kind: str, pairs: Sequence[Pair]) -> None:
    table = Table(kind, "iteration s", "rollout s", "train s", "total s", "nodes lost")
    for pair in pairs:
        for name, found in (("real", pair.real), ("simulated", pair.simulated)):
            seconds = (found.iteration, found.rollout, found.train, found.total)
            table.add_row(name, *(f"{each:.2f}" for each in seconds), str(found.losses))
        table.add_row(
            f"error (wanted: {LIMITS[kind]:.0%})",
            f"{pair.iteration_error:+.1%}",
            "",
            "",
            f"{pair.total_error:+.1%}",
            "",
        )
    Console(stderr=True).print(table)


def figure(values: Sequence[float], unit: str) -> dict[str, float | str]:
    return {"value": statistics.median(values), "low": min(values), "high": max(values), "unit": unit}


def figures(found: Runs, profile: str) -> dict[str, dict[str, float | str]]:
    slots = f"4 + 8 slots paced by {profile}"
    units = {
        "cpu": ("fidelity_cpu_error", "simulated / real median iteration time - 1, words-nft on 1 + 1 processes"),
        "paced": ("fidelity_paced_error", f"simulated / real median iteration time - 1, {slots}"),
        "trace": ("fidelity_paced_trace_error", f"simulated / real time of all iterations - 1, {slots}, nodes killed"),
    }
    shown = {}
    for kind, pairs in found.items():
        name, unit = units[kind]
        is_trace = kind == "trace"
        shown[name] = figure([pair.total_error if is_trace else pair.iteration_error for pair in pairs], unit)
        unit = "s, all iterations" if is_trace else "s, median iteration"
        for name, timings in (
            ("real", [pair.real for pair in pairs]),
            ("simulated", [pair.simulated for pair in pairs]),
        ):
            shown[f"{kind}_{name}_s"] = figure([each.total if is_trace else each.iteration for each in timings], unit)
    return shown


def joined(path: Path, found: Runs) -> Runs:
    """What was found before, but for the kinds and seeds that were run now."""
    before = msgspec.convert(json.loads(path.read_bytes()).get("runs", {}), Runs) if path.exists() else {}
    return {
        kind: sorted(
            [*found.get(kind, []), *(pair for pair in before.get(kind, []) if pair.seed not in seeds(found, kind))],
            key=lambda pair: pair.seed,
        )
        for kind in LIMITS
        if kind in {*found, *before}
    }


def seeds(found: Runs, kind: str) -> set[int]:
    return {pair.seed for pair in found.get(kind, [])}


def draw(found: Runs, path: Path) -> None:
    """Every counted iteration: as long as it really was, and as long as the simulation says."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(4.4 * len(found), 3.8), squeeze=False)
    for axis, (kind, pairs) in zip(axes[0], found.items(), strict=True):
        for pair in pairs:
            line = axis.plot(pair.real.iterations, "o-", ms=4, lw=1, label=f"real, seed {pair.seed}")[0]
            axis.plot(pair.simulated.iterations, "x--", ms=5, lw=1, color=line.get_color(), label="simulated")
        axis.set_title(TITLES[kind], fontsize=9)
        axis.set_xlabel("iteration after the warm-up")
        axis.set_ylabel("seconds of the profile")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7, ncols=2, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
