"""The planner's benchmark and the fits behind it: what they conclude from hand-made runs."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import learning_fit
import planner

from spotlight.control.market.traces import Trace


def run(plan, payoff, seed=0, workload="words", is_always_cut=False):
    payoffs = (1.0, *[payoff] * (planner.ITERATIONS - 1))
    return planner.Run(workload=workload, plan=plan, seed=seed, payoffs=payoffs, is_always_cut=is_always_cut)


def test_comparison_takes_the_plan_that_is_best_over_all_seeds():
    steady, lucky = planner.Plan(6, 32), planner.Plan(4, 64)
    runs = [run(steady, 1.5), run(steady, 1.5, 1), run(lucky, 1.7), run(lucky, 1.1, 1)]
    compared = planner.Compared.of(
        planner.WORKLOADS["words"], [*runs, run(planner.BANDIT, 1.5), run(planner.BANDIT, 1.8, 1)]
    )
    assert compared.best(planner.EARLY) == str(steady)
    figure = planner.figures([compared])["bandit_vs_best_fixed_words"]
    assert (figure["value"], figure["low"], figure["high"]) == pytest.approx((1.1, 1.0, 1.2))


def test_sweep_that_ended_early_for_one_seed_stands_for_larger_plans_of_it():
    small, large = planner.Plan(6, 32), planner.Plan(6, 48)
    runs = [run(small, 1.2), run(large, 1.4), run(small, 1.6, 1, is_always_cut=True)]
    runs += [run(planner.BANDIT, 1.5), run(planner.BANDIT, 1.5, 1)]
    compared = planner.Compared.of(planner.WORKLOADS["words"], runs)
    assert planner.mean_payoff(compared.fixed[str(large)], planner.EARLY) == pytest.approx(1.5)


def test_changing_workload_loses_five_slots_after_a_warning_and_gets_them_back(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(planner.WORKLOADS["changing"].trace())
    trace = Trace.load(str(path), 8)
    counted = Counter((event.time_s, event.event.value) for event in trace.events)
    assert counted == {(0, "up"): 8, (1000, "notice"): 5, (1030, "kill"): 5, (2000, "up"): 5}


def test_fit_recovers_the_curve_that_points_lie_on():
    def curve(progress, is_exploring):
        rewards = tuple(0.9 - 0.3 * np.exp(-0.05 * p) for p in progress)
        return learning_fit.Curve(source="x", is_exploring=is_exploring, progress=progress, rewards=rewards)

    points = [curve(tuple(range(0, 60, 5)), False), curve(tuple(range(0, 120, 10)), True)]
    assert learning_fit.fit_curve(points) == pytest.approx((0.6, 0.9, 0.05), rel=0.01)


def test_correlation_is_within_prompts_however_much_these_differ():
    rows = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    assert learning_fit.pooled_correlation(rows, rows[::-1]) == pytest.approx(1.0)
    assert learning_fit.pooled_correlation(rows, -rows) == pytest.approx(-1.0)
