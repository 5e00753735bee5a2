"""The price of stand-ins on a trace, integrated over forecasts of steady fleets."""

from pathlib import Path

import pytest
from test_plan import PROFILE, RECIPE, changes, planned

from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.surface.fallback_trade import TraceForecast, trade, trade_counts
from spotlight.surface.fleets import seconds_by_presence
from spotlight.surface.planning import forecast
from spotlight.surface.simulating import Assumed

PRICES = PriceTable.load()
ON_DEMAND, SPOT = 55.04 / 8, PRICES["aws-p5-h100"].spot_per_hour / 8


def config(*settings: str) -> RunConfig:
    return load_config(
        "words-large-nft+spotlight-fixed", ["cluster.spot=2", "cluster.gang=1", "cluster.reserved=1", *settings]
    )


SECONDS = {0: 60.0, 1: 30.0, 2: 20.0}
"""Seconds per iteration by present spot nodes."""


def on_trace(folder: Path, counts: str, *settings: str) -> list[TraceForecast]:
    (folder / "market.csv").write_text(f"t_s,n\n{counts}")
    return trade(config(f"market.trace={folder}/market.csv", *settings), SECONDS, PRICES)


def test_steady_trace_is_the_forecast_of_the_whole_fleet_with_and_without_stand_ins(tmp_path):
    without, with_them = on_trace(tmp_path, "0,2\n9000,2\n", "iterations=60")
    assert without.hours == with_them.hours == pytest.approx(1200 / 3600)
    assert without.dollars == with_them.dollars == pytest.approx((ON_DEMAND + 2 * SPOT) / 3)
    assert (without.spot, with_them.stand_ins) == (2, 0)


def test_stand_ins_of_an_empty_trace_work_after_wait_and_boot_and_are_paid_from_renting_on(tmp_path):
    """One hour alone; with stand-ins 600 s alone (10 iterations) and 50 iterations of 20 s."""
    rows = on_trace(tmp_path, "0,0\n90000,1\n99000,1\n", "iterations=60", "market.boot_s=300")
    without, with_them = rows
    assert [row.fallback_s for row in rows] == [None, 300]
    assert (without.seconds_per_iteration, without.dollars) == (60, pytest.approx(ON_DEMAND))
    assert with_them.seconds_per_iteration == pytest.approx(1600 / 60)
    assert with_them.dollars == pytest.approx(ON_DEMAND * (1600 + 2 * 1300) / 3600)
    assert with_them.stand_ins == pytest.approx(2 * 1000 / 1600)


def test_stand_ins_wait_for_the_seconds_of_the_recipe_and_go_when_spot_is_back(tmp_path):
    _, with_them = on_trace(tmp_path, "0,2\n200,0\n800,2\n9000,2\n", "iterations=60", "market.fallback_s=100")
    assert with_them.fallback_s == 100
    # Alone for 100 s, stood in for 500 s, at 20 s per iteration otherwise: 100 s bring 5/3 iterations instead of 5.
    assert with_them.hours * 3600 == pytest.approx(1200 + (5 - 100 / 60) * 20)
    assert with_them.dollars * 3600 == pytest.approx(
        ON_DEMAND * (with_them.hours * 3600 + 2 * 500) + 2 * SPOT * (with_them.hours * 3600 - 600)
    )


def test_run_without_trace_or_spot_nodes_has_no_trade():
    assert trade_counts(config()) == []
    assert trade(config(), SECONDS, PRICES) == []
    assert trade_counts(config("market.trace=calm", "cluster.spot=0")) == []
    assert trade_counts(config("market.trace=calm", "cluster.spot=8")) == [0, 4, 8]


def test_plan_shows_what_stand_ins_cost_and_save_on_the_recipes_trace():
    trace = ("--set", "market.trace=storm", "--set", "cluster.spot=2")
    printed = planned(RECIPE, "--profile", PROFILE, "--spot", 2, *changes(), *trace)
    assert "On the trace storm" in printed
    assert "mean stand-ins" in printed


def test_seconds_of_a_partial_fleet_contain_the_waits_for_previews_and_those_of_a_whole_one_do_not():
    assumed = Assumed(profile=Profile.load(PROFILE), prices=PRICES)
    long = ("iterations=6", "rollout.prompts=8", "rollout.group_size=8", "eval.prompts=16", "explore.seeds=48")
    settings = config(*long, "algorithm.timesteps_per_sample=40", "market.trace=calm")
    patient, never = (
        seconds_by_presence(with_overrun, RECIPE, assumed, [1, 2], lambda stage, done, total: None)
        for with_overrun in (settings, config(*long, "algorithm.timesteps_per_sample=40", "explore.overrun=0"))
    )
    assert patient[2] == never[2] == forecast(settings, RECIPE, 2, assumed).seconds_per_iteration
    assert patient[1] > 1.02 * never[1]
