"""Bounds, figures and the file of `pipeline_local.py`."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.fidelity.figures import Timing
from benchmarks.learn.figures import Figure
from benchmarks.lib.provenance import provenance


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """All ways of one setting, run one after the other."""

    seed: int
    order: tuple[str, ...]
    groups: int
    timings: dict[str, Timing]
    commit: str
    date: str
    hardware: str

    def speedup(self, way: str) -> float:
        return self.timings["serial"].iteration / self.timings[way].iteration

    def bound(self, way: str) -> float:
        """The most that arithmetic allows, from the phases of the serial run."""
        serial = self.timings["serial"]
        rollout, train, unit = serial.rollout, serial.train, 1 / self.groups
        rest = max(0.0, serial.iteration - rollout - train)
        if way == "gap":
            overlapped = unit * (rollout + train) + (1 - unit) * max(rollout, train)
        else:
            overlapped = max((rollout + train + unit * train) / 2, train + unit * rollout / 2)
        return (rollout + train + rest) / (overlapped + rest)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Repeats by setting, and digests of weights after each step by way."""

    runs: dict[str, list[Repeat]]
    digests: dict[str, list[str]]


def joined(path: Path, found: Found) -> Found:
    """What is in the file and was not run again, and what was found."""
    if not path.is_file():
        return found
    kept = msgspec.json.decode(path.read_bytes(), type=Found)
    runs = {}
    for setting in sorted({*kept.runs, *found.runs}):
        by_seed = {each.seed: each for each in (*kept.runs.get(setting, ()), *found.runs.get(setting, ()))}
        runs[setting] = [by_seed[seed] for seed in sorted(by_seed)]
    return Found(runs=runs, digests=found.digests or kept.digests)


def figures(found: Found) -> dict[str, Figure]:
    shown: dict[str, Figure] = {}
    for setting, repeats in found.runs.items():

        def over(value: Callable[[Repeat], float], unit: str, repeats: Sequence[Repeat] = repeats) -> Figure:
            values = [value(each) for each in repeats]
            return Figure(value=statistics.median(values), low=min(values), high=max(values), unit=unit)

        ways = sorted(repeats[0].timings)
        for way in ways:
            shown[f"{setting}_{way}_s"] = over(lambda each, way=way: each.timings[way].iteration, "s per iteration")
            if way == "serial":
                continue
            shown[f"{setting}_{way}_speedup"] = over(lambda each, way=way: each.speedup(way), "times serial")
            shown[f"{setting}_{way}_bound"] = over(lambda each, way=way: each.bound(way), "times serial, arithmetic")
            shown[f"{setting}_{way}_of_bound"] = over(
                lambda each, way=way: each.speedup(way) / each.bound(way), "of the bound"
            )
        if "gap" in ways:
            gain = over(lambda each: each.speedup("pipelined") / each.speedup("gap"), "times as fast as without TAG")
            shown[f"{setting}_tag_gain"] = gain
        shown[f"{setting}_rollout_s"] = over(lambda each: each.timings["serial"].rollout, "s, serial")
        shown[f"{setting}_train_s"] = over(lambda each: each.timings["serial"].train, "s, serial")
    if found.digests:
        same = float(len({tuple(each) for each in found.digests.values()}) == 1)
        shown["same_weights"] = Figure(value=same, low=same, high=same, unit="1: all steps' digests are the same")
    return shown


def present(found: Found, settings: Mapping[str, Any], path: Path, as_json: bool) -> None:
    """Print the table, write the file."""
    stamp: Mapping[str, Any] = provenance()
    seeds = sorted({each.seed for repeats in found.runs.values() for each in repeats})
    shown = figures(found)
    summary = {"benchmark": "pipeline-local", **stamp, "seeds": seeds, "settings": settings, "figures": shown}
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**summary, **msgspec.to_builtins(found)}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    table = Table("figure", "median", "lowest", "highest", "unit", title=f"{stamp['hardware']}, {stamp['commit']}")
    for name, figure in shown.items():
        table.add_row(name, *(f"{value:.3f}" for value in (figure.value, figure.low, figure.high)), figure.unit)
    Console(width=120).print(table)
    if as_json:
        print(msgspec.json.encode(summary).decode())
