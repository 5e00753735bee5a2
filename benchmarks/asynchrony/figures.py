"""Files and figures of `asynchrony.py`: the last held-out reward of each arm, and how stale rows differ from fresh."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.lib.provenance import provenance
from spotlight.control.pipeline.stale_figures import OF_STALENESS
from spotlight.core.errors import InputError
from spotlight.core.events import Evaluated, Issued, IterationDone, StepCommitted
from spotlight.core.journal import read
from spotlight.core.work import Work
from spotlight.folder import RunFolder

ARMS = ("synchronous", "asynchronous")
FIRST_LOSS = "nft"
"""Its figures bear no suffix."""


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out evaluation; `low` and `high` are its 95 % interval over prompts."""

    iteration: int
    reward: float
    low: float
    high: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of one loss with one seed."""

    family: str
    loss: str
    arm: str
    seed: int
    iterations: int
    points: tuple[Point, ...]
    figures: dict[str, float]
    """That tell stale rows from fresh ones: means over the steps that had such rows."""
    stale_samples: float
    """Share of all rollouts after the first iteration that were drawn with the weights before."""
    virtual_hours: float
    settings: str
    seconds: float
    commit: str = ""
    date: str = ""
    hardware: str = ""

    @property
    def reward(self) -> float:
        return self.points[-1].reward


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over seeds with the smallest and the largest seed."""

    value: float
    low: float
    high: float
    unit: str


def read_run(
    folder: RunFolder, *, family: str, loss: str, arm: str, seed: int, settings: str, seconds: float
) -> Result:
    points: list[Point] = []
    told: dict[str, list[float]] = {}
    ages: list[int] = []
    iterations, at = 0, 0.0
    for record in read(folder.journal):
        at = record.at
        match record.event:
            case Evaluated() as seen:
                value, low, high = seen.scores["reward"]
                points.append(Point(iteration=seen.iteration, reward=value, low=low, high=high))
            case StepCommitted() as step:
                for name in sorted(OF_STALENESS & step.figures.keys()):
                    told.setdefault(name, []).append(step.figures[name])
            case Issued() as issued:
                ages += [
                    request.iteration - request.sample.version
                    for request in issued.requests
                    if request.work is Work.ROLLOUT and request.iteration
                ]
            case IterationDone() as done:
                iterations = done.iteration + 1
            case _:
                pass
    return Result(
        family=family,
        loss=loss,
        arm=arm,
        seed=seed,
        iterations=iterations,
        points=tuple(points),
        figures={name: sum(values) / len(values) for name, values in told.items()},
        stale_samples=sum(ages) / len(ages) if ages else 0.0,
        virtual_hours=at / 3600,
        settings=settings,
        seconds=seconds,
        **provenance(),
    )


def save(result: Result, path: Path) -> None:
    scratch = path.with_suffix(".part")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
    scratch.replace(path)


def load(path: Path) -> Result:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} is not the result of a run ({error}); pass files that asynchrony.py wrote."
        ) from error


def present(results: Sequence[Result], out: Path, as_json: bool) -> None:
    """Print the table and write OUT.json."""
    _check_mergeable(results)
    figures: dict[str, Figure] = {}
    for loss in sorted({result.loss for result in results}, key=lambda loss: (loss != FIRST_LOSS, loss)):
        figures |= figures_of([result for result in results if result.loss == loss], loss)
    first = results[0]
    summary = {
        "benchmark": "asynchrony",
        "commit": first.commit,
        "date": first.date,
        "hardware": first.hardware,
        "seeds": sorted({result.seed for result in results}),
        "family": first.family,
        "figures": msgspec.to_builtins(figures),
        "runs": msgspec.to_builtins(list(results)),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.parent / f"{out.name}.json"
    path.write_text(json.dumps(summary, indent=1) + "\n")
    title = f"{first.family}, {first.hardware}, {first.commit}"
    table = Table(title=title)
    for heading in ("figure", "mean", "lowest seed", "highest seed"):
        table.add_column(heading, no_wrap=True)
    table.add_column("unit")
    for name, figure in figures.items():
        table.add_row(name, *(f"{value:.4g}" for value in (figure.value, figure.low, figure.high)), figure.unit)
    Console().print(table)
    Console(stderr=True).print(f"figures {path}", soft_wrap=True)
    if as_json:
        print(json.dumps({key: value for key, value in summary.items() if key != "runs"}))


def figures_of(results: Sequence[Result], loss: str) -> dict[str, Figure]:
    """Of one loss, which all names but those of the first end with."""
    arms = {arm: {result.seed: result for result in results if result.arm == arm} for arm in ARMS}
    found: dict[str, Figure] = {}
    for arm, runs in arms.items():
        if runs:
            unit = f"held-out reward after {next(iter(runs.values())).iterations} iterations"
            found[f"reward_{arm}"] = _over([run.reward for run in runs.values()], unit)
            found[f"reward_{arm}_before"] = _over([run.points[0].reward for run in runs.values()], "held-out reward")
    synchronous, asynchronous = (arms[arm] for arm in ARMS)
    both = sorted(synchronous.keys() & asynchronous.keys())
    if both:
        gaps = [asynchronous[seed].reward - synchronous[seed].reward for seed in both]
        found["reward_difference"] = _over(gaps, "asynchronous minus synchronous, by seed")
    if len(both) > 1:
        one, other = found["reward_synchronous"], found["reward_asynchronous"]
        overlap = float(one.low <= other.high and other.low <= one.high)
        found["intervals_overlap"] = Figure(value=overlap, low=overlap, high=overlap, unit="1: yes")
    if asynchronous:
        runs = list(asynchronous.values())
        found["stale_samples"] = _over([run.stale_samples for run in runs], "share of rollouts after the first")
        for name in sorted({name for run in runs for name in run.figures}):
            found[name] = _over([run.figures[name] for run in runs if name in run.figures], "mean over steps")
    suffix = "" if loss == FIRST_LOSS else f"_{loss}"
    return {f"{name}{suffix}": figure for name, figure in found.items()}


def _over(values: Sequence[float], unit: str) -> Figure:
    return Figure(value=sum(values) / len(values), low=min(values), high=max(values), unit=unit)


def _check_mergeable(results: Sequence[Result]) -> None:
    """One family and one commit, each run once, and arms of a loss that trained for as long."""
    seen: Mapping[tuple[str, str, int], Result] = {(r.loss, r.arm, r.seed): r for r in results}
    if not results or len(seen) < len(results):
        raise InputError("there is no result, or one run is given twice; pass each file once.")
    for what, values in (
        ("families", {result.family for result in results}),
        ("commits", {result.commit for result in results}),
    ):
        if len(values) > 1:
            raise InputError(f"the results are of several {what} ({', '.join(sorted(values))}); merge one at a time.")
    for loss in sorted({result.loss for result in results}):
        lengths = sorted({result.iterations for result in results if result.loss == loss})
        if len(lengths) > 1:
            raise InputError(f"the runs of {loss} have {lengths} iterations, so their ends cannot be compared.")
