"""Figures that the documents quote and that no result file has by name: computed from the rows that the file keeps.

A document names them as it names the others, `<!-- pipeline: settings at 2.1 -->`.
"""

import math
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

Result = dict[str, Any]
Figure = dict[str, float]

GOAL = 2.1
"""The goal of the pipeline: speed-up over `disaggregated-serial`."""
SHARE_GOAL = 0.95
"""Share of its ceiling that every row of the pipeline should reach."""


def derived_from(name: str, result: Result) -> dict[str, Figure]:
    """Further figures of a result file, by name."""
    return DERIVED[name](result) if name in DERIVED else {}


def over(values: Iterable[float]) -> Figure:
    """Geometric mean, least and most."""
    found = list(values)
    return {
        "value": math.exp(math.fsum(map(math.log, found)) / len(found)),
        "low": min(found),
        "high": max(found),
    }


def mean(values: Iterable[float]) -> Figure:
    found = list(values)
    return {"value": math.fsum(found) / len(found), "low": min(found), "high": max(found)}


def count(number: float) -> Figure:
    return {"value": number, "low": number, "high": number}


# -- headline ----------------------------------------------------------------------------------------------------------


def of_headline(result: Result) -> dict[str, Figure]:
    """Where the time of the headline goes, from the curves of its cells."""
    cells = result["cells"]
    baseline = {_task(cell): cell for cell in cells if cell["setup"] == "reserved-only"}
    ours = [cell for cell in cells if cell["setup"] == result["ours"]]
    reached = [(baseline[_task(cell)], cell, _reached(cell, _final(baseline[_task(cell)]))) for cell in ours]
    there = [(base, cell, at) for base, cell, at in reached if at is not None]
    figures = {"races": count(len(ours)), "races that reach the score": count(len(there))}
    fewer, shorter = [], []
    for (family, _, _), group in groupby(sorted(there, key=lambda each: _place(each[1])), lambda e: _place(e[1])):
        pairs = [(_reached(base, _final(base)), at) for base, _, at in group]
        iterations = [theirs[0] / own[0] for theirs, own in pairs if theirs is not None]
        hours = [theirs[1] / own[1] for theirs, own in pairs if theirs is not None]
        fewer.append((family, over(iterations)["value"]))
        shorter.append(over(h / i for h, i in zip(hours, iterations, strict=True))["value"])
    for family in ("scenes", "words-large"):
        figures[f"times fewer iterations {family}"] = over(value for name, value in fewer if name == family)
        for setup in (result["ours"], "reserved-only"):
            finals = {
                cell["seed"]: _final(cell) for cell in cells if (cell["family"], cell["setup"]) == (family, setup)
            }
            figures[f"final score {family} {setup}"] = mean(finals.values())
    figures["times shorter iterations"] = over(shorter)
    quick = [
        at[1] * 60 for _, cell, at in there if cell["family"] == "words-large" and _place(cell)[1].endswith("-512")
    ]
    figures["minutes to the score words-large 512"] = mean(quick)
    times, dollars = (
        {key: each["value"] for key, each in result["figures"].items() if key.startswith(f"{ratio} ")}
        for ratio in ("speedup_vs_reserved_only", "cost_ratio_vs_reserved_only")
    )
    priced = {key: dollars.get(key.replace("speedup", "cost_ratio")) for key in times}
    figures["times the price per hour"] = over(times[key] / cost for key, cost in priced.items() if cost)
    return figures


def _task(cell: Result) -> tuple[str, str, int]:
    return cell["family"], cell["profile"], cell["seed"]


def _place(cell: Result) -> tuple[str, str, str]:
    return cell["family"], cell["profile"], cell["trace"]


def _final(cell: Result) -> float:
    """Mean of the last two evaluations."""
    return float((cell["curve"][-1][2] + cell["curve"][-2][2]) / 2)


def _reached(cell: Result, score: float) -> tuple[float, float] | None:
    """Iterations and hours at which the best score so far first comes to `score`, linearly between evaluations."""
    before = cell["curve"][0]
    for point in cell["curve"][1:]:
        if point[2] >= score:
            share = (score - before[2]) / (point[2] - before[2])
            return before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])
        before = [point[0], point[1], max(before[2], point[2])]
    return None


# -- the others --------------------------------------------------------------------------------------------------------


def of_pipeline(result: Result) -> dict[str, Figure]:
    columns: dict[str, dict[str, Result]] = {}
    for outcome in result["outcomes"]:
        columns.setdefault(f"{outcome['cell']} {outcome['seed']}", {})[outcome["row"]] = outcome
    whole = [(rows["serial"], rows["+asynchrony"]) for rows in columns.values()]
    below = [row for rows in columns.values() for name, row in rows.items() if _misses(row) and name != "colocated"]
    figures = {
        "settings": count(len(whole)),
        "settings at 2.1": count(sum(serial["seconds"] / last["seconds"] >= GOAL for serial, last in whole)),
        "settings whose ceiling is below 2.1": count(
            sum(serial["seconds"] / last["ceiling_s"] < GOAL for serial, last in whole)
        ),
    }
    for row in ("+GAP", "+TSP", "+TAG", "+asynchrony"):
        figures[f"rows below the share goal {row}"] = count(sum(each["row"] == row for each in below))
    return figures


def _misses(row: Result) -> bool:
    return row["ceiling_s"] is not None and row["ceiling_s"] / row["seconds"] < SHARE_GOAL


def of_learned_scenes(result: Result) -> dict[str, Figure]:
    """Means over seeds of the strict score, at each evaluation from iteration 190 on."""
    late: dict[int, list[float]] = {}
    for run in result["runs"]:
        for point in run["points"]:
            if point["iteration"] >= 190:
                late.setdefault(point["iteration"], []).append(point["strict"])
    return {"strict from iteration 190": mean(mean(values)["value"] for values in late.values())}


def of_asynchrony(result: Result) -> dict[str, Figure]:
    at_25 = [
        point["reward"]
        for run in result["runs"]
        if (run["loss"], run["arm"]) == ("nft", "synchronous")
        for point in run["points"]
        if point["iteration"] == 25
    ]
    return {"reward_synchronous after 25 iterations": mean(at_25)}


def of_batches(result: Result) -> dict[str, Figure]:
    """Settings that were tried, with previews and without."""
    names = [name for name in result["figures"] if " at 50 %" not in name]
    figures = {}
    for family in ("scenes", "words-large"):
        mine = [name for name in names if name.startswith(f"{family} ")]
        plain = [name for name in mine if name.startswith(f"{family} plain")]
        figures[f"settings with previews {family}"] = count(len(mine) - len(plain))
        figures[f"settings without previews {family}"] = count(len(plain))
    return figures


def of_mixed_gpus(result: Result) -> dict[str, Figure]:
    """Means of the ratios by setup: over all mixed fleets, by amount of work and size, and of the worst cell."""
    seconds: dict[tuple[Any, ...], float] = {}
    for outcome in result["outcomes"]:
        case = outcome["case"]
        size = case["profile"].rpartition("-")[2]
        cell = case["setup"], case["fleet"], f"{case['prompts']}x16 at {size}", case["seed"]
        seconds[(*cell, case["policy"])] = outcome["iteration_s"]
    ratios: dict[str, dict[tuple[Any, ...], float]] = {}
    for (setup, fleet, work, seed, policy), without_s in seconds.items():
        if policy != "measured" and fleet != "1":
            ratio = without_s / seconds[setup, fleet, work, seed, "measured"]
            ratios.setdefault(f"{setup} vs {policy}", {})[fleet, work, seed] = ratio
    figures = {}
    for name, found in ratios.items():
        figures[f"{name}, mean"] = mean(found.values())
        cells = {(fleet, work) for fleet, work, _ in found}
        means = [mean(ratio for (*cell, _), ratio in found.items() if tuple(cell) == each)["value"] for each in cells]
        figures[f"{name}, cells"] = count(len(means))
        figures[f"{name}, cells slower by 3 %"] = count(sum(each < 0.97 for each in means))
        figures[f"{name}, worst cell"] = count(min(means))
        for work in {work for _, work, _ in found}:
            figures[f"{name}, {work}"] = mean(ratio for (_, each, _), ratio in found.items() if each == work)
    return figures


def of_learning_fit(result: Result) -> dict[str, Figure]:
    """Correlation of fp8 previews over that of exact ones, by family."""
    ranks = {family: known["ranks"] for family, known in result["measured"].items() if known.get("ranks")}
    shares = {family: each["fp8"] / each["second_order"][str(each["fp8_steps"])] for family, each in ranks.items()}
    return {f"fp8 share {family}": count(share) for family, share in shares.items()}


DERIVED: dict[str, Callable[[Result], dict[str, Figure]]] = {
    "headline": of_headline,
    "pipeline": of_pipeline,
    "learn-scenes": of_learned_scenes,
    "asynchrony": of_asynchrony,
    "batches": of_batches,
    "mixed_gpus": of_mixed_gpus,
    "learning_fit": of_learning_fit,
}
