"""Figures and table of the benchmark."""

import re
import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from benchmarks.lib.figures import Figure
from benchmarks.mixed_gpus.policies import Policy
from benchmarks.mixed_gpus.run import FLEETS, Case, Outcome, Setup

ALIKE = "1"
TIMES, SHARE = "times the samples per hour", "share of the ideal"


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Ratios over all mixed fleets, and by fleet; each is a median over work, sizes and seeds."""
    found: dict[str, Figure] = {}
    fleets = sorted({outcome.case.fleet for outcome in outcomes}, key=list(FLEETS).index)
    for fleet in (None, *fleets):
        name = "mixed" if fleet is None else _named(fleet)
        chosen = [each for each in outcomes if each.case.fleet == fleet or (fleet is None and each.case.fleet != ALIKE)]
        for policy in (Policy.BLIND, Policy.EARLY, Policy.EVEN):
            ratios = list(_ratios(chosen, policy, Setup.SERIAL, "rollout_s"))
            found[f"rollouts_vs_{policy}_{name}"] = Figure.median(ratios, TIMES)
            ratios = list(_ratios(chosen, policy, Setup.SERIAL, "iteration_s"))
            found[f"serial_vs_{policy}_{name}"] = Figure.median(ratios, TIMES)
        for setup in (Setup.PIPELINED, Setup.SPOTLIGHT):
            ratios = list(_ratios(chosen, Policy.BLIND, setup, "iteration_s"))
            found[f"{setup}_vs_blind_{name}"] = Figure.median(ratios, TIMES)
        found[f"overlapped_vs_even_serial_{name}"] = Figure.median(list(_overlapped(chosen)), TIMES)
        found[f"share_of_ideal_{name}"] = Figure.median(list(_shares(chosen, Policy.MEASURED)), SHARE)
        found[f"share_of_ideal_blind_{name}"] = Figure.median(list(_shares(chosen, Policy.BLIND)), SHARE)
    return found


def _named(fleet: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", fleet.replace(".", ""))


def _ratios(outcomes: Sequence[Outcome], policy: Policy, setup: Setup, measure: str) -> Iterator[float]:
    """Seconds without the rule over seconds with it, pair by pair."""
    by_case = {outcome.case: outcome for outcome in outcomes}
    for case, outcome in by_case.items():
        if case.policy is policy and case.setup is setup:
            product = by_case[_like(case, setup, Policy.MEASURED)]
            yield getattr(outcome, measure) / getattr(product, measure)


def _overlapped(outcomes: Sequence[Outcome]) -> Iterator[float]:
    """An even split in serial phases over measured shares with overlap."""
    by_case = {outcome.case: outcome for outcome in outcomes}
    for case, outcome in by_case.items():
        if case.policy is Policy.EVEN and case.setup is Setup.SERIAL:
            yield outcome.iteration_s / by_case[_like(case, Setup.PIPELINED, Policy.MEASURED)].iteration_s


def _shares(outcomes: Sequence[Outcome], policy: Policy) -> Iterator[float]:
    for outcome in outcomes:
        if outcome.case.setup is Setup.SERIAL and outcome.case.policy is policy:
            yield outcome.ideal_s / outcome.rollout_s


def _like(case: Case, setup: Setup, policy: Policy) -> Case:
    return Case(case.profile, case.fleet, case.prompts, case.steps, case.seed, setup, policy)


def table_of(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="virtual time, Qwen-Image 20 B (profiles): seconds of the rollout phase, means over seeds")
    for column in ("size", "fleet", "samples, steps", *Policy, "ideal"):
        table.add_column(column, justify="left" if column in ("size", "fleet") else "right")
    serial = [outcome for outcome in outcomes if outcome.case.setup is Setup.SERIAL]
    for key in dict.fromkeys((one.case.profile, one.case.fleet, one.case.prompts, one.case.steps) for one in serial):
        profile, fleet, prompts, steps = key
        alike = [one for one in serial if (one.case.profile, one.case.fleet, one.case.prompts, one.case.steps) == key]
        means = [statistics.fmean(one.rollout_s for one in alike if one.case.policy is policy) for policy in Policy]
        ideal = statistics.fmean(one.ideal_s for one in alike)
        work = f"{prompts}x16, {steps}"
        table.add_row(profile.rpartition("-")[2], fleet, work, *(f"{mean:.1f}" for mean in [*means, ideal]))
    return table
