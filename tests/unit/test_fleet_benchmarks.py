"""`benchmarks/mixed_gpus/` and `benchmarks/zones/`: shares of a mixed fleet, and markets that lose whole zones."""

import itertools

import pytest

from benchmarks.mixed_gpus.policies import Policy
from benchmarks.mixed_gpus.run import PROFILES, Case, Setup, outcome_of
from benchmarks.zones import run as zones
from benchmarks.zones.hazard import hazards_of
from benchmarks.zones.policies import Rule, zone_of
from spotlight.control.ledger import Ledger
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass

SMALL = zones.Work("small", "h200-qwen-image-512", 2, 16, 10, 6, 1, 12)


def test_fleet_of_two_speeds_iterates_sooner_with_shares_by_measured_speed_than_with_equal_ones():
    measured, blind, even = (
        outcome_of(Case(PROFILES[0], "1 : 0.5", 4, 30, 1, Setup.SERIAL, policy))
        for policy in (Policy.MEASURED, Policy.BLIND, Policy.EVEN)
    )
    assert measured.ideal_s < measured.rollout_s < 1.3 * measured.ideal_s
    assert min(blind.iteration_s, even.iteration_s) > 1.15 * measured.iteration_s


def test_zone_is_lost_at_one_instant_and_a_run_goes_on_without_it():
    case = zones.Case(SMALL, Rule.NONE, zones.Commits.USUAL, seed=3)
    kills = [(event.time_s, zone_of(WorkerId(f"{event.node}.1/0.1"))) for event in zones.market_of(case).kills]
    assert any(kills.count(kill) == SMALL.nodes // len(zones.ZONES) for kill in kills)
    outcome = zones.outcome_of(case)
    assert (outcome.iteration_s > 0, outcome.lost >= 0) == (True, True)


def test_rules_prefer_small_zones_and_old_machines():
    workers = [WorkerId(f"spot-{number}.1/0.1") for number in (1, 2, 4)]
    schedulers = [rule.scheduler(zones.WEATHER)(Ledger(lambda event: None)) for rule in (Rule.SPREAD, Rule.OLDER)]
    for scheduler, (came, worker) in itertools.product(schedulers, enumerate(workers)):
        scheduler.join(worker, SlotClass.SPOT, 8, came * 3600.0)
    spread, older = schedulers
    assert [spread.preference(worker, 7200.0) for worker in workers] == [0.75, 1.5, 0.75]
    ages = [older.preference(worker, 7200.0) for worker in workers]
    assert 1 > ages[0] > ages[1] > ages[2] > 0


def test_losses_are_counted_by_age(tmp_path):
    trace = tmp_path / "held.events.csv"
    trace.write_text("t_s,op,node\n0,add,a\n0,add,b\n900,remove,a\n7200,remove,b\n")
    found = {name: figure.value for name, figure in hazards_of([str(trace)]).items()}
    assert found["hazard, held, from 0 min"] == pytest.approx(1 / 0.75)
    assert found["hazard, held, from 30 min"] == 0.0
    assert found["hazard, held, from 120 min"] == 0.0
