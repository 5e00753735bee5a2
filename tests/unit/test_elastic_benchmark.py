"""`benchmarks/elastic/`: what a loss costs each policy, the bill, and ratios against the best fixed size."""

import pytest

from benchmarks.elastic import run as elastic
from benchmarks.elastic.figures import Kind, Outcome, Policy, best, figures_of
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Happening, Trace, TraceEvent

HOURS = 0.15
PROFILE = "h200-qwen-image-1280"


def unsteady(seed, hours):
    """Every crew of four loses one slot again and again, each time for a minute; all other slots stay."""
    names = [f"spot-{node}/{slot}" for node in (1, 2) for slot in range(elastic.SLOTS)]
    events = [TraceEvent(0.0, name, Happening.UP) for name in names]
    for start in range(100, int(hours * 3600), 100):
        for name in ("spot-1/0", "spot-1/4", "spot-2/0", "spot-2/4"):
            events.append(TraceEvent(start, name, Happening.KILL))
            events.append(TraceEvent(start + 60.0, name, Happening.UP))
    return Trace("unsteady", tuple(sorted(events, key=lambda event: (event.time_s, event.node))))


def outcome(policy, per_dollar, seed=0, pictures=4):
    return Outcome(
        policy=policy, pictures=pictures, seed=seed, accepted=per_dollar, rounds=1, hours=1.0, dollars=1.0, losses=0,
        regroups=0,
    )  # fmt: skip


def test_elastic_crews_under_losses_make_more_than_those_that_stop(monkeypatch):
    monkeypatch.setattr(elastic, "slot_trace", unsteady)
    policies = (Policy(Kind.ELASTIC), Policy(Kind.RELAUNCH, 4), Policy(Kind.IDLE, 4))
    made = [elastic.run(elastic.Case(policy, 4, 0, HOURS, PROFILE)) for policy in policies]
    assert made[0].accepted > made[1].accepted > 0
    assert made[0].accepted > made[2].accepted > 0
    assert len({each.dollars for each in made}) == 1


def test_run_of_one_case_twice_is_the_same(monkeypatch):
    monkeypatch.setattr(elastic, "slot_trace", unsteady)
    case = elastic.Case(Policy(Kind.ELASTIC), 8, 0, HOURS / 2, PROFILE)
    assert elastic.run(case) == elastic.run(case)


def test_bill_counts_slots_while_they_are_there_and_the_gang_always(monkeypatch):
    monkeypatch.setattr(elastic, "GANG", 4)
    events = ((0.0, "n/0", Happening.UP), (1800.0, "n/0", Happening.KILL), (5400.0, "n/0", Happening.UP))
    trace = Trace("t", tuple(TraceEvent(*event) for event in events))
    row = PriceTable.load()[elastic.PRICE]
    spot, reserved = row.spot_per_hour / row.gpus, row.on_demand_per_hour / row.gpus
    assert elastic.dollars(trace, 1.0, PriceTable.load()) == pytest.approx(0.5 * spot + 4 * reserved)
    assert elastic.dollars(trace, 2.0, PriceTable.load()) == pytest.approx(1.0 * spot + 8 * reserved)


def test_ratio_is_against_the_size_that_serves_the_baseline_best():
    small, large = Policy(Kind.RELAUNCH, 2), Policy(Kind.RELAUNCH, 4)
    made = [outcome(Policy(Kind.ELASTIC), n, seed) for seed, n in enumerate((30, 20))]
    made += [outcome(small, n, seed) for seed, n in enumerate((15, 15))]
    made += [outcome(large, n, seed) for seed, n in enumerate((25, 10))]
    made += [outcome(policy, 10, seed) for policy in (Policy(Kind.IDLE, 2), Policy(Kind.SINGLE)) for seed in (0, 1)]
    assert best(made, Kind.RELAUNCH, 4) == large
    ratio = figures_of(made)["goodput_ratio_vs_relaunch"]
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.2, 1.6, 2.0))
    assert figures_of(made)["goodput_ratio_vs_relaunch_of_2"].value == pytest.approx((2.0 + 20 / 15) / 2)
