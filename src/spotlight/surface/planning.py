"""Time and cost of a run on a fleet: a short simulation of the run, and the figures of its middle iterations.

The simulated run has the recipe's settings, few iterations and steady capacity: no losses, stand-ins or budget. Means
leave out the first two iterations (the first has no previews, and those of the second are planned before anything is
measured) and the last, which prepares no next one. Hours and dollars of the whole run are those of the simulation plus
the mean for every iteration that was not simulated.

Invariant: the figures are those of `spotlight sim` with the same settings (tests/unit/test_plan.py).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import msgspec

from spotlight.budget import BudgetConfig
from spotlight.config import RunConfig
from spotlight.control.market.bill import HOUR_S, settle
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import (
    Evaluated,
    ExplorationClosed,
    IterationDone,
    Planned,
    Published,
    Record,
    Selected,
    StepCommitted,
)
from spotlight.core.journal import read
from spotlight.core.work import Policy
from spotlight.folder import OutputConfig, RunFolder
from spotlight.sim.controller import Ending
from spotlight.sim.learning import learning_names
from spotlight.sim.simulate import Simulation, simulate, simulated
from spotlight.surface.simulating import Assumed, model_numerics, own_fit

MOST_ITERATIONS, FEWEST_ITERATIONS = 8, 4
"""Simulated iterations per fleet: of 8, the middle five have one evaluation and one checkpoint of the usual cadence."""
ROLLOUTS = 4096
"""Rollouts per fleet above which fewer iterations are simulated, so that large recipes also take seconds."""
LONG_AFTER_S = 10**9
"""Run time after the end of any simulated run."""
DEFAULT_FIT = "words-nft"
"""Fit for recipes that have none; durations hardly depend on rewards."""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of an iteration, by what the loop waits for."""

    rollout: float
    train: float
    """Remaining training after the last rollout."""
    exploration: float
    """Wait for previews after the end of training; those during training cost no time."""
    publish: float
    evaluation: float
    """Publication of the averaged weights, and remaining evaluation after the end of training."""
    checkpoint: float
    """Remaining write of a checkpoint when the next one begins; the copy before it delays rollouts."""

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, name) for name in self.__struct_fields__)


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The run on one fleet."""

    spot: int
    spot_slots: int
    slots: int
    phases: Phases
    """Phases of the mean iteration."""
    seconds_per_iteration: float
    previews_planned: int
    previews_finished: int
    """Finished previews per iteration."""
    audited: int
    """Samples per iteration that are rolled out only to measure previews."""
    dollars_per_hour: float
    dollars_per_iteration: float
    iterations: int
    hours: float
    """Hours of all iterations, with the start of the workers and the last evaluation and checkpoint."""
    dollars: float


def fit_of(config: RunConfig) -> str:
    """Name of the fit from which rewards are drawn."""
    own = own_fit(config)
    return own if own in learning_names() else DEFAULT_FIT


def simulated_iterations(config: RunConfig) -> int:
    affordable = ROLLOUTS // (config.rollout.prompts * config.rollout.group_size)
    return min(config.iterations, MOST_ITERATIONS, max(FEWEST_ITERATIONS, affordable))


def short_run(config: RunConfig, spot: int) -> RunConfig:
    """The recipe with this number of spot nodes, always present, and few iterations."""
    settings = config.model_dump()
    settings["iterations"] = simulated_iterations(config)
    settings["cluster"]["spot"] = spot
    settings["market"] |= {"trace": None, "fallback_s": None}
    settings["budget"] = BudgetConfig().model_dump()
    return RunConfig.model_validate(settings)


def forecast(
    config: RunConfig, recipe: str, spot: int, assumed: Assumed, progress: Callable[[int], None] = lambda done: None
) -> Forecast:
    """Forecast the run with `spot` spot nodes; `progress` is called with the count of simulated iterations."""
    run = simulated(short_run(config, spot), assumed.profile)
    seconds, records = _simulated(run, recipe, assumed, progress)
    phases, cluster = _phases(records, config), run.cluster
    middle = _middle(iterations_of(records))
    per_hour = _dollars_per_hour(run, assumed.prices)
    beyond_h = (config.iterations - run.iterations) * phases.total / HOUR_S
    return Forecast(
        spot=spot,
        spot_slots=spot * cluster.slots,
        slots=(cluster.reserved + spot) * cluster.slots,
        phases=phases,
        seconds_per_iteration=phases.total,
        previews_planned=round(fmean(one.previews_planned for one in middle)),
        previews_finished=round(fmean(one.previews_finished for one in middle)),
        audited=round(fmean(one.audited for one in middle)),
        dollars_per_hour=per_hour,
        dollars_per_iteration=per_hour * phases.total / HOUR_S,
        iterations=config.iterations,
        hours=seconds / HOUR_S + beyond_h,
        dollars=_bill(records, assumed.prices, cluster.reserved) + per_hour * beyond_h,
    )


def seconds_with(
    config: RunConfig, recipe: str, present: int, assumed: Assumed, progress: Callable[[int], None]
) -> float:
    """Seconds per iteration while `present` of the run's spot nodes are there and the others are missing."""
    short = short_run(config, config.cluster.spot)
    with TemporaryDirectory(prefix="spotlight-trace-") as parent:
        trace = Path(parent, "steady.csv")
        trace.write_text(f"t_s,n\n0,{present}\n{LONG_AFTER_S},{config.cluster.spot}\n")
        steady = short.market.model_copy(update={"trace": str(trace), "start_h": 0.0, "speed": 1.0})
        run = simulated(short.model_copy(update={"market": steady}), assumed.profile)
        return _phases(_simulated(run, recipe, assumed, progress)[1], config).total


def _simulated(
    run: RunConfig, recipe: str, assumed: Assumed, progress: Callable[[int], None]
) -> tuple[float, list[Record]]:
    """Seconds and journal of a simulated run."""
    simulation = Simulation(
        config=run,
        recipe=recipe,
        profile=assumed.profile,
        numerics=model_numerics(run, fit_of(run)),
        prices=assumed.prices,
        progress=progress,
    )
    with TemporaryDirectory(prefix="spotlight-plan-") as parent:
        folder = RunFolder.create(OutputConfig(folder=parent), "plan")
        outcome = simulate(simulation, folder)
        if outcome.ending is not Ending.FINISHED:
            raise EnvironmentProblem(outcome.reason)
        return outcome.seconds, list(read(folder.journal))


def _middle(iterations: list["Iteration"]) -> list["Iteration"]:
    """Iterations that the means are taken of; a run of one or two iterations has no middle."""
    return iterations[2:-1] or iterations[1:] or iterations


def _phases(records: Iterable[Record], config: RunConfig) -> Phases:
    iterations = iterations_of(records)
    return _mean_phases(_middle(iterations), iterations[0], config.eval.every)


def _dollars_per_hour(run: RunConfig, prices: PriceTable) -> float:
    """Price of the whole fleet, busy or not."""
    cluster, market = run.cluster, run.market
    nodes = [*cluster.reserved_nodes(market.reserved_price), *cluster.spot_nodes(market.spot_price)]
    return math.fsum(node.slots * prices[node.price].per_gpu_hour(node.slot_class) for node in nodes)


def _bill(records: Iterable[Record], prices: PriceTable, reserved: int) -> float:
    meter = CostMeter()
    for record in records:
        meter.apply(record)
    return settle(meter.tallies(), prices, reserved).dollars


@dataclass(kw_only=True)
class Iteration:
    """One iteration of a journal: the run times at which its phases end, as in `loop.py`, and its previews."""

    start: float | None = None
    """End of the previous iteration; None for the first, which begins with its rollouts."""
    averaged: float | None = None
    """Publication of the averaged weights, if they are evaluated."""
    rollout_s: float = 0.0
    train_s: float = 0.0
    trained: float = 0.0
    evaluated: float | None = None
    published: float = 0.0
    done: float = 0.0
    previews_planned: int = 0
    previews_finished: int = 0
    audited: int = 0

    def apply(self, record: Record) -> None:
        match record.event:
            case Published(weights=weights) if weights.policy is Policy.AVERAGE:
                self.averaged = record.at
            case Published():
                self.published = record.at
            case StepCommitted():
                self.trained = record.at
            case Evaluated():
                self.evaluated = record.at
            case IterationDone() as done:
                self.rollout_s, self.train_s, self.done = done.rollout_s, done.train_s, record.at
            case Planned() as planned:
                self.previews_planned = planned.previews
            case ExplorationClosed() as closed:
                self.previews_finished = closed.finished
            case Selected() as selected:
                self.audited = sum(map(len, selected.audit))
            case _:
                pass

    @property
    def phases(self) -> Phases:
        began = self.trained - self.train_s - self.rollout_s
        start = began if self.start is None else self.start
        averaged = start if self.start is None or self.averaged is None else self.averaged
        evaluated = self.trained if self.evaluated is None else self.evaluated
        return Phases(
            rollout=self.rollout_s,
            train=self.train_s,
            exploration=self.done - self.published,
            publish=self.published - evaluated,
            evaluation=averaged - start + evaluated - self.trained,
            # A difference of sums: without a wait, it may be a rounding error below 0.
            checkpoint=max(0.0, began - averaged),
        )


def iterations_of(records: Iterable[Record]) -> list[Iteration]:
    """All finished iterations, in order."""
    found: list[Iteration] = []
    current = Iteration()
    for record in records:
        current.apply(record)
        if isinstance(record.event, IterationDone):
            found.append(current)
            current = Iteration(start=record.at)
    return found


def _mean_phases(middle: Sequence[Iteration], first: Iteration, evaluate_every: int) -> Phases:
    """Means of the middle iterations; the mean evaluation is divided by the iterations between two evaluations.

    If no middle iteration has an evaluation, that of the first is used: the base is always evaluated.
    """
    evaluated = [one for one in middle if one.evaluated is not None] or [first]
    means = {name: fmean(getattr(one.phases, name) for one in middle) for name in Phases.__struct_fields__}
    means["evaluation"] = fmean(one.phases.evaluation for one in evaluated) / evaluate_every
    return Phases(**means)
