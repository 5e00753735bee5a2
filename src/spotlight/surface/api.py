"""The functions of `import spotlight`: recipes, runs, simulations, comparisons. docs/python_api.md shows them at work.

Errors are those of the command line: a SpotlightError whose text is the same sentence.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

import msgspec

from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.folder import RunFolder
from spotlight.surface.background import start
from spotlight.surface.cli.progress import PatientProgress
from spotlight.surface.compare import Comparison, Curve
from spotlight.surface.compare import compare as compared
from spotlight.surface.compare.simulated import Contest, run_all
from spotlight.surface.fleets import forecasts_of, profile_of, usual_counts
from spotlight.surface.planning import Forecast
from spotlight.surface.run_handle import RunHandle
from spotlight.surface.simulating import Assumed, NumericsKind, SimulationOrder, simulate_recipe

DEFAULT_RECIPE = "demo"
Outcome = TypeVar("Outcome")
StrPath = str | PathLike[str]


@dataclass(frozen=True)
class Recipe:
    """A recipe with overrides, checked; `config` has all settings."""

    name: str
    overrides: tuple[str, ...]
    config: RunConfig = field(repr=False)


class ComparedSetups(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison: milestones and final figures of every setup, and the curves behind them."""

    comparison: Comparison
    curves: list[Curve]


def load_recipe(
    name: str = DEFAULT_RECIPE, overrides: Sequence[str] | Mapping[str, object] = (), **settings: object
) -> Recipe:
    """Load a shipped recipe or a YAML file, with settings on top.

    `overrides` are `section.key=value` texts or a mapping of dotted keys; keywords are settings without a section,
    or whole sections: `load_recipe("words-nft", {"cluster.spot": 3}, iterations=4, eval={"every": 2})`.
    """
    given = [overrides] if isinstance(overrides, str) else overrides
    listed = [override_of(*item) for item in given.items()] if isinstance(given, Mapping) else list(given)
    for key, value in settings.items():
        listed += [override_of(*item) for item in _dotted(key, value)]
    return Recipe(name, tuple(listed), load_config(name, listed))


def train(recipe: Recipe | str = DEFAULT_RECIPE, *, wait: bool = False, prices: StrPath | None = None) -> RunHandle:
    """Start a run as a process of its own, which a crash of this process does not end.

    Returns when every check has passed and the run has begun; with `wait`, when it has ended, with its progress on
    standard output. `prices` is a price table (CSV); default is the shipped one.
    """
    chosen = _recipe(recipe)
    table = _prices(prices)
    settings = [argument for override in chosen.overrides for argument in ("--set", override)]
    priced = [] if prices is None else ["--prices", fspath(prices)]
    begun = start(["train", chosen.name, *settings, *priced])
    run = RunHandle(begun.folder, table, begun.process)
    if wait:
        run.wait(progress=True)
    return run


def open(run: StrPath, *, prices: StrPath | None = None) -> RunHandle:
    """A run by its folder, or by its name in `runs/`."""
    return RunHandle(RunFolder.find(fspath(run)), _prices(prices))


def simulate(
    recipe: Recipe | str,
    profile: str = "h200-qwen-image-512",
    *,
    trace: str | None = None,
    numerics: str = "model",
    learning: str | None = None,
    prices: StrPath | None = None,
) -> RunHandle:
    """Simulate a run in virtual time, in this process: the real control plane with the durations of a profile."""
    chosen = _recipe(recipe)
    order = SimulationOrder(
        recipe=chosen.name,
        overrides=chosen.overrides,
        assumed=Assumed(profile=Profile.load(profile), prices=_prices(prices), trace=trace),
        kind=NumericsKind.named(numerics),
        learning=learning,
    )

    def work() -> RunHandle:
        with PatientProgress() as progress:
            end = simulate_recipe(order, progress.report)
        return RunHandle(RunFolder(Path(end.folder)), order.assumed.prices)

    return _outside_a_loop(work)


def compare(
    task: Recipe | str,
    setups: Sequence[str] = ("reserved-only", "spotlight"),
    profile: str = "h200-qwen-image-512",
    *,
    trace: str | None = "calm",
    seeds: Sequence[int] = (0, 1, 2),
    numerics: str = "model",
    folder: StrPath = "runs/compare",
    prices: StrPath | None = None,
) -> ComparedSetups:
    """Compare setups in virtual time: iterations, hours and dollars to the same score; the first is the baseline."""
    chosen = _recipe(task)
    contest = Contest(
        task=chosen.name,
        setups=tuple(setups),
        seeds=tuple(seeds),
        overrides=chosen.overrides,
        assumed=Assumed(profile=Profile.load(profile), prices=_prices(prices), trace=trace),
        kind=NumericsKind.named(numerics),
        learning=None,
        folder=Path(folder),
    )

    def work() -> ComparedSetups:
        with PatientProgress() as progress:
            curves = run_all(contest, None, progress.report)
        return ComparedSetups(comparison=compared(curves, contest.setups[0]), curves=curves)

    return _outside_a_loop(work)


def plan(
    recipe: Recipe | str,
    spot: Sequence[int] | None = None,
    *,
    profile: str | None = None,
    prices: StrPath | None = None,
) -> list[Forecast]:
    """Seconds, previews and dollars of a run for several numbers of spot nodes, from short simulations."""
    chosen = _recipe(recipe)
    assumed = Assumed(profile=profile_of(chosen.config, profile), prices=_prices(prices))
    counts = usual_counts(chosen.config) if spot is None else sorted(set(spot))

    def work() -> list[Forecast]:
        with PatientProgress() as progress:
            return forecasts_of(chosen.config, chosen.name, assumed, counts, progress.report)

    return _outside_a_loop(work)


def override_of(key: str, value: object) -> str:
    """A setting as `section.key=value`; the value is JSON, which YAML reads back as it was."""
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    # YAML refuses control characters, and reads an escaped surrogate pair as two characters.
    return f"{key}=" + "".join(each if " " <= each <= "~" else f"\\U{ord(each):08X}" for each in text)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PathLike):
        return fspath(value)
    raise TypeError(f"a setting is a number, a text, a list or a mapping, not a {type(value).__name__}")


def _dotted(key: str, value: object) -> list[tuple[str, object]]:
    """A mapping as its keys, so that other keys of the section stay."""
    if isinstance(value, Mapping) and value:
        return [item for inner, each in value.items() for item in _dotted(f"{key}.{inner}", each)]
    return [(key, value)]


def _recipe(recipe: Recipe | str) -> Recipe:
    return load_recipe(recipe) if isinstance(recipe, str) else recipe


def _prices(path: StrPath | None) -> PriceTable:
    return PriceTable.load(None if path is None else Path(path))


def _outside_a_loop(work: Callable[[], Outcome]) -> Outcome:
    """Run `work`, which needs an event loop of its own, in a thread if this one already has one, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()
