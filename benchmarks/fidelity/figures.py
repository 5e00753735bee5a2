"""Runs and their simulations by kind and seed, and the errors of the latter."""

import json
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.table import Table

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.local_runs import Timing

LIMITS = {"cpu": 0.03, "paced": 0.03, "trace": 0.03}
"""Largest error that the simulator should have, by kind."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its simulation."""

    seed: int
    commit: str
    profile: str
    """Name and digest of the simulation's profile."""
    real: Timing
    simulated: Timing

    @property
    def iteration_error(self) -> float:
        return self.simulated.iteration / self.real.iteration - 1

    @property
    def total_error(self) -> float:
        return self.simulated.total / self.real.total - 1


Runs: TypeAlias = dict[str, list[Pair]]
"""Pairs by kind, one per seed."""


def table_of(found: Runs) -> Table:
    table = Table("kind", "", "iteration s", "rollout s", "train s", "total s", "nodes lost")
    for kind, pairs in found.items():
        for pair in pairs:
            for name, each in (("real", pair.real), ("simulated", pair.simulated)):
                seconds = (each.iteration, each.rollout, each.train, each.total)
                table.add_row(f"{kind} {pair.seed}", name, *(f"{value:.2f}" for value in seconds), str(each.losses))
            errors = (f"{pair.iteration_error:+.1%}", "", "", f"{pair.total_error:+.1%}", "")
            table.add_row("", f"error (goal: {LIMITS[kind]:.0%})", *errors)
    return table


def figures(found: Runs, profile: str) -> dict[str, Figure]:
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
        shown[name] = Figure.median([pair.total_error if is_trace else pair.iteration_error for pair in pairs], unit)
        unit = "s, all iterations" if is_trace else "s, median iteration"
        for name, timings in (
            ("real", [pair.real for pair in pairs]),
            ("simulated", [pair.simulated for pair in pairs]),
        ):
            shown[f"{kind}_{name}_s"] = Figure.median(
                [each.total if is_trace else each.iteration for each in timings], unit
            )
    return shown


def joined(path: Path, found: Runs) -> Runs:
    """The results, with other kinds and seeds of the file."""
    before = msgspec.convert(json.loads(path.read_bytes()).get("runs", {}), Runs) if path.exists() else {}
    return {
        kind: merge.by_seed(before.get(kind, []), found.get(kind, [])) for kind in LIMITS if kind in {*found, *before}
    }
