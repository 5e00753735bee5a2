"""Repeats by setting, their arithmetic bounds, and the figures."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.local_runs import Timing


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
        """Arithmetic bound from the phases of the serial run."""
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
    """The results, with those of the file that were not run again."""
    if not path.is_file():
        return found
    kept = msgspec.json.decode(path.read_bytes(), type=Found)
    runs = {
        setting: merge.by_seed(kept.runs.get(setting, ()), found.runs.get(setting, ()))
        for setting in sorted({*kept.runs, *found.runs})
    }
    return Found(runs=runs, digests=found.digests or kept.digests)


def figures(found: Found) -> dict[str, Figure]:
    shown: dict[str, Figure] = {}
    for setting, repeats in found.runs.items():
        shown |= {f"{setting}_{name}": figure for name, figure in _figures(repeats).items()}
    if found.digests:
        same = float(len({tuple(each) for each in found.digests.values()}) == 1)
        shown["same_weights"] = Figure.single(same, "1: all steps' digests are the same")
    return shown


def _figures(repeats: Sequence[Repeat]) -> dict[str, Figure]:
    """Figures of one setting."""
    shown: dict[str, Figure] = {}
    serial = [each.timings["serial"] for each in repeats]
    ways = sorted(repeats[0].timings)
    for way in ways:
        shown[f"{way}_s"] = Figure.median([each.timings[way].iteration for each in repeats], "s per iteration")
        if way == "serial":
            continue
        speedups, bounds = [each.speedup(way) for each in repeats], [each.bound(way) for each in repeats]
        shares = [speedup / bound for speedup, bound in zip(speedups, bounds, strict=True)]
        shown[f"{way}_speedup"] = Figure.median(speedups, "times serial")
        shown[f"{way}_bound"] = Figure.median(bounds, "times serial, arithmetic")
        shown[f"{way}_of_bound"] = Figure.median(shares, "of the bound")
    if "gap" in ways:
        gains = [each.speedup("pipelined") / each.speedup("gap") for each in repeats]
        shown["tag_gain"] = Figure.median(gains, "times as fast as without TAG")
    shown["rollout_s"] = Figure.median([each.rollout for each in serial], "s, serial")
    shown["train_s"] = Figure.median([each.train for each in serial], "s, serial")
    return shown
