"""Runs of both arms: the last held-out reward of each, and the difference of stale rows from fresh ones."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import publish, summary_of
from spotlight.control.pipeline.staleness import OF_STALENESS
from spotlight.core import journal
from spotlight.core.errors import InputError
from spotlight.core.events import Evaluated, Issued, IterationDone, StepCommitted
from spotlight.core.work import Work
from spotlight.folder import RunFolder

SYNCHRONOUS, ASYNCHRONOUS = ARMS = ("synchronous", "asynchronous")
FIRST_LOSS = "nft"
"""The loss whose figures have no suffix."""


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
    """Differences of stale rows from fresh ones: means over the updates that have such rows."""
    stale_samples: float
    """Share of all rollouts after the first iteration that were drawn with the previous weights."""
    virtual_hours: float
    settings: str
    seconds: float
    commit: str = ""
    date: str = ""
    hardware: str = ""

    @property
    def reward(self) -> float:
        return self.points[-1].reward


def read_run(
    folder: RunFolder, *, family: str, loss: str, arm: str, seed: int, settings: str, seconds: float
) -> Result:
    points: list[Point] = []
    by_name: dict[str, list[float]] = {}
    ages: list[int] = []
    iterations, at = 0, 0.0
    for record in journal.read(folder.journal):
        at = record.at
        match record.event:
            case Evaluated() as seen:
                value, low, high = seen.scores["reward"]
                points.append(Point(iteration=seen.iteration, reward=value, low=low, high=high))
            case StepCommitted() as step:
                for name in sorted(OF_STALENESS & step.figures.keys()):
                    by_name.setdefault(name, []).append(step.figures[name])
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
        figures={name: sum(values) / len(values) for name, values in by_name.items()},
        stale_samples=sum(ages) / len(ages) if ages else 0.0,
        virtual_hours=at / 3600,
        settings=settings,
        seconds=seconds,
        **provenance(),
    )


def read(path: Path) -> Result:
    return merge.read(path, Result, "asynchrony")


def present(results: Sequence[Result], out: Path, as_json: bool) -> None:
    """Print the table and write OUT.json."""
    _check_mergeable(results)
    figures: dict[str, Figure] = {}
    for loss in sorted({result.loss for result in results}, key=lambda loss: (loss != FIRST_LOSS, loss)):
        figures |= figures_of([result for result in results if result.loss == loss], loss)
    seeds = sorted({result.seed for result in results})
    summary = summary_of("asynchrony", figures, seeds, merge.stamp_of(results), family=results[0].family)
    publish(summary, out, as_json, runs=list(results))


def figures_of(results: Sequence[Result], loss: str) -> dict[str, Figure]:
    """Figures of one loss; their names end with it, except for the first loss."""
    arms = {arm: {result.seed: result for result in results if result.arm == arm} for arm in ARMS}
    found: dict[str, Figure] = {}
    for arm, runs in arms.items():
        if runs:
            unit = f"held-out reward after {next(iter(runs.values())).iterations} iterations"
            found[f"reward_{arm}"] = Figure.mean([run.reward for run in runs.values()], unit)
            found[f"reward_{arm}_before"] = Figure.mean(
                [run.points[0].reward for run in runs.values()], "held-out reward"
            )
    synchronous, asynchronous = (arms[arm] for arm in ARMS)
    both = sorted(synchronous.keys() & asynchronous.keys())
    if both:
        gaps = [asynchronous[seed].reward - synchronous[seed].reward for seed in both]
        found["reward_difference"] = Figure.mean(gaps, "asynchronous minus synchronous, by seed")
    if len(both) > 1:
        one, other = ([run.reward for run in runs.values()] for runs in (synchronous, asynchronous))
        overlap = float(min(one) <= max(other) and min(other) <= max(one))
        found["intervals_overlap"] = Figure.single(overlap, "1: yes")
    if asynchronous:
        stale = list(asynchronous.values())
        found["stale_samples"] = Figure.mean([run.stale_samples for run in stale], "share of rollouts after the first")
        for name in sorted({name for run in stale for name in run.figures}):
            found[name] = Figure.mean([run.figures[name] for run in stale if name in run.figures], "mean over steps")
    suffix = "" if loss == FIRST_LOSS else f"_{loss}"
    return {f"{name}{suffix}": figure for name, figure in found.items()}


def _check_mergeable(results: Sequence[Result]) -> None:
    """Require one family and commit, each run once, and equal lengths of the arms of a loss."""
    merge.check_given_once([(result.loss, result.arm, result.seed) for result in results], "asynchrony")
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
