"""The planner's benchmark and the fits behind it, on hand-made runs."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.learning_fit import headline_fit
from benchmarks.learning_fit import run as learning_fit
from benchmarks.planner import figures as planner_figures
from benchmarks.planner import run as planner
from spotlight.control.market.traces import Trace


def run(plan, payoff, seed=0):
    payoffs = (1.0, *[payoff] * (planner.ITERATIONS - 1))
    return planner.Run(workload="words", plan=plan, seed=seed, payoffs=payoffs)


def test_comparison_takes_the_plan_that_is_best_over_all_seeds():
    steady, lucky = planner.DEFAULT, planner.Plan(4, 64)
    runs = [run(steady, 1.5), run(steady, 1.5, 1), run(lucky, 1.7), run(lucky, 1.1, 1)]
    compared = planner_figures.Compared.of(
        planner.WORKLOADS["words"], [*runs, run(planner.BANDIT, 1.5), run(planner.BANDIT, 1.8, 1)]
    )
    assert compared.best(planner_figures.EARLY) == str(steady)
    figure = planner_figures.figures([compared])["bandit_vs_best_fixed_words"]
    assert (figure.value, figure.low, figure.high) == pytest.approx((1.1, 1.0, 1.2))


def test_screening_keeps_plans_near_the_best_only():
    good, near, poor = planner.Plan(8, 48), planner.Plan(6, 64), planner.Plan(2, 192)
    assert planner.near_best([run(good, 2.0), run(poor, 1.2), run(near, 1.85)]) == [near, good]


def test_changing_workload_loses_five_slots_after_a_warning_and_gets_them_back(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(planner.WORKLOADS["changing_short"].trace())
    trace = Trace.load(str(path), 8)
    counted = Counter((event.time_s, event.event.value) for event in trace.events)
    assert counted == {(0, "up"): 8, (1000, "notice"): 5, (1030, "kill"): 5, (2000, "up"): 5}


def test_fit_recovers_the_curve_that_points_lie_on():
    def curve(progress, is_exploring):
        rewards = tuple(0.9 - 0.3 * np.exp(-0.05 * p) for p in progress)
        return learning_fit.Curve(source="x", is_exploring=is_exploring, progress=progress, rewards=rewards)

    points = [curve(tuple(range(0, 60, 5)), False), curve(tuple(range(0, 120, 10)), True)]
    assert learning_fit.fit_curve(points) == pytest.approx((0.6, 0.9, 0.05), rel=0.01)


def test_headline_fit_recovers_the_lagging_curve_and_the_noise_that_points_have():
    progress = np.tile(np.arange(0.0, 85.0, 5.0), 3)
    rewards = 0.9 - 0.3 * np.exp(-0.05 * (progress + 6.0 * np.expm1(-progress / 6.0)))
    assert headline_fit.fit_lagging(progress, rewards) == pytest.approx((0.6, 0.9, 0.05, 6.0), rel=0.05)
    plain, progress = headline_fit.BASELINE, progress[:17]
    drawn = np.random.default_rng(0).normal(size=(20, 17)) * 0.005 * (progress > 0)
    curves = {seed: headline_fit.Curve(progress, progress, rewards[:17] + noise) for seed, noise in enumerate(drawn)}
    assert headline_fit.noise_of("words-large", plain, {plain: curves}) == pytest.approx(0.005, rel=0.1)


def test_headline_fits_are_checked_by_the_iterations_of_races():
    iterations = np.arange(0.0, 50.0, 10.0)
    plain, ours = np.array([0.0, 0.2, 0.4, 0.6, 0.8]), np.array([0.0, 0.4, 0.8, 0.8, 0.8])
    # Means of two reach 0.7 between 25 and 35 iterations, and between 15 and 25 twice as fast.
    race = {headline_fit.BASELINE: plain, headline_fit.OURS: ours}
    found = headline_fit.fewer(
        {setup: headline_fit.Curve(iterations, iterations, each) for setup, each in race.items()}
    )
    assert found == pytest.approx(35 / 20)


def test_correlation_is_within_prompts_however_much_these_differ():
    rows = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
    assert learning_fit.pooled_correlation(rows, rows[::-1]) == pytest.approx(1.0)
    assert learning_fit.pooled_correlation(rows, -rows) == pytest.approx(-1.0)
