"""Prices, traces and the meter: what machines cost, when they are lost, how their seconds were used."""

import math
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market_stories import metered, node, seconds, worked, worker
from story_journal import story

from spotlight.assets import asset
from spotlight.control.market import shipped
from spotlight.control.market.bill import settle
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Happening, Trace, TraceEvent, trace_names
from spotlight.control.market.weather import Weather, generate
from spotlight.core.errors import ConfigError
from spotlight.core.events import (
    AnyEvent,
    NodeJoined,
    NodeLost,
    Record,
    RunResumed,
    RunStopped,
    WorkerLost,
)
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, NoticeKind, SlotClass

# -- prices ------------------------------------------------------------------------------------------------------------


def test_price_of_an_eight_gpu_machine_is_per_gpu():
    row = PriceTable.load()["aws-p5-h100"]
    assert row.per_gpu_hour(SlotClass.RESERVED) == pytest.approx(55.04 / 8)
    assert row.per_gpu_hour(SlotClass.SPOT) == pytest.approx(20.63 / 8)


def test_shipped_table_has_source_and_date_of_every_row():
    table = PriceTable.load()
    assert table.date == "2026-08"
    assert all("SkyPilot" in row.source and row.date for row in table.rows.values())


def test_table_with_one_changed_price_has_another_digest(tmp_path: Path):
    other = tmp_path / "mine.csv"
    other.write_text(asset("prices/list-2026-08.csv").read_text().replace("55.04", "55.05"))
    table = PriceTable.load(other)
    assert table.digest != PriceTable.load().digest
    assert table.name == "mine"


def test_unknown_price_row_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'aws-p5-h100'"):
        PriceTable.load()["aws-p5-h10"]


def test_spot_price_of_a_machine_sold_on_demand_only_is_refused():
    with pytest.raises(ConfigError, match="on demand only"):
        PriceTable.load()["lambda-h100"].per_gpu_hour(SlotClass.SPOT)


@pytest.mark.parametrize("provider", ["AWS", "GCP", "Azure"])
def test_shipped_table_prices_every_big_provider(provider: str):
    assert any(row.provider == provider and row.gpu == "H100" for row in PriceTable.load().rows.values())


def test_stale_spot_price_is_not_quoted():
    azure = [row for row in PriceTable.load().rows.values() if row.provider == "Azure"]
    assert all(row.spot_per_hour is None and "left out" in row.source for row in azure)


def test_table_without_the_machine_of_the_run_is_refused_before_anything_is_billed(tmp_path: Path):
    mine = tmp_path / "mine.csv"
    mine.write_text(HEAD + "lab-h100,Lab,8x H100,H100,8,16,,2026-09,our invoice\n")
    table = PriceTable.load(mine)
    table.require([(SlotClass.RESERVED, "lab-h100")])
    with pytest.raises(ConfigError, match=r"'mine' has no row 'aws-p5-h100'.*lab-h100"):
        table.require([(SlotClass.RESERVED, "lab-h100"), (SlotClass.SPOT, "aws-p5-h100")])
    with pytest.raises(ConfigError, match="'lab-h100' has no spot price"):
        table.require([(SlotClass.SPOT, "lab-h100")])


HEAD = "name,provider,instance,gpu,gpus,on_demand_per_hour,spot_per_hour,date,source\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "must have name, provider"),
        (HEAD, "has no rows"),
        (HEAD + "x,P,i,H100,8,many,1,2026-08,me\n", "line 2 .* on_demand_per_hour as 'many'"),
        (HEAD + "x,P,i,H100,2.5,9,1,2026-08,me\n", "gpus as '2.5'"),
        (HEAD + "x,P,i,H100,8,9,1,,me\n", "has no date"),
        (HEAD + "x,P,i,H100,8,9,1,2026-08,me\n" * 2, "two rows 'x'"),
        (HEAD + "x,P,i,H100,8,9,1,2026-08,me, myself\n", "more than 9 fields"),
    ],
)
def test_bad_price_table_is_refused_in_one_sentence(tmp_path: Path, content: str, message: str):
    path = tmp_path / "prices.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        PriceTable.load(path)


# -- traces ------------------------------------------------------------------------------------------------------------


def test_demo_trace_has_losses_with_and_without_notice_one_of_all_nodes_and_all_return():
    trace = Trace.load("demo")
    kills = trace.kills
    noticed = sum(trace.noticed(kill) for kill in kills)
    assert len(kills) >= 6
    assert noticed == len(kills) / 2
    assert Counter(kill.time_s for kill in kills).most_common(1)[0][1] == len(trace.nodes) == 2
    assert 240 <= trace.seconds <= 330
    assert [event.event for event in trace.events if event.node == "spot-1"][-1] is Happening.UP
    assert [event.event for event in trace.events if event.node == "spot-2"][-1] is Happening.UP
    imminent = [event.seconds for event in trace.events if event.event is Happening.NOTICE]
    assert any(10 <= seconds <= 30 for seconds in imminent)


def test_storm_trace_kills_at_least_sixty_times_in_six_minutes_half_of_them_unannounced():
    trace = Trace.load("storm")
    noticed = sum(trace.noticed(kill) for kill in trace.kills)
    assert len(trace.kills) >= 60
    assert trace.seconds <= 370
    assert 0.4 <= noticed / len(trace.kills) <= 0.6


@pytest.mark.parametrize("made", [shipped.demo, shipped.storm, shipped.calm, shipped.bulk])
def test_shipped_traces_are_what_their_generator_makes(made):
    trace = made()
    assert trace.name in trace_names()
    assert asset(f"traces/{trace.name}.csv").read_text() == trace.to_csv()
    assert Trace.load(trace.name).events == trace.events


def test_compressed_trace_keeps_order_and_shortens_notices():
    trace = Trace.load("demo")
    fast = trace.compressed(10)
    assert fast.seconds == pytest.approx(trace.seconds / 10)
    assert [event.node for event in fast.events] == [event.node for event in trace.events]
    assert sum(event.seconds for event in fast.events) == pytest.approx(sum(e.seconds for e in trace.events) / 10)
    with pytest.raises(ConfigError, match="above 0"):
        trace.compressed(0)


def test_notice_that_no_loss_follows_is_advisory():
    up, warning, kill = (
        TraceEvent(0, "a", Happening.UP),
        TraceEvent(5, "a", Happening.NOTICE, 10),
        TraceEvent(15, "a", Happening.KILL),
    )
    assert Trace("t", (up, warning, kill)).notice_kind(warning) is NoticeKind.IMMINENT
    assert Trace("t", (up, warning)).notice_kind(warning) is NoticeKind.ADVISORY


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0,a,down,0", "'down', which is not an event"),
        ("0,a,kill,0", "not up then"),
        ("0,a,up,0\n1,a,up,0", "up already"),
        ("5,a,up,0\n1,a,kill,0", "sort its lines"),
        ("x,a,up,0", "line 2 .* time_s as 'x'"),
        ("0,a,up,0\n1,a,notice,-3", "line 3 .* seconds as '-3'"),
        ("0,,up,0", "names no node"),
        ("", "has no events"),
    ],
)
def test_bad_trace_is_refused_in_one_sentence(tmp_path: Path, lines: str, message: str):
    path = tmp_path / "bad.csv"
    path.write_text(f"time_s,node,event,seconds\n{lines}\n")
    with pytest.raises(ConfigError, match=message):
        Trace.load(path)


def test_unknown_trace_name_suggests_a_shipped_one():
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        Trace.load("dmo")


def test_generated_events_of_a_node_do_not_depend_on_its_neighbours():
    alone = generate(3, ["n1"], hours=24)
    among = generate(3, ["n1", "n2", "n3"], hours=24)
    assert [event for event in among.events if event.node == "n1"] == list(alone.events)
    assert generate(4, ["n1"], hours=24) != alone


def test_generated_scarcity_takes_most_nodes_at_one_instant_and_each_independently_of_the_others():
    weather = Weather(median_life_s=1e6, median_zone_s=1e12, median_plenty_s=7200, median_scarcity_s=7200)
    names = [f"n{number}" for number in range(20)]
    trace = generate(5, names, hours=48, weather=weather)
    largest = Counter(kill.time_s for kill in trace.kills).most_common(1)[0][1]
    assert 12 <= largest < 20
    alone = generate(5, ["n0"], hours=48, weather=weather)
    assert [event for event in trace.events if event.node == "n0"] == list(alone.events)


def test_generated_lives_are_heavy_tailed():
    weather = Weather(median_zone_s=1e12, shortest_life_s=1)
    trace = generate(0, [f"n{number}" for number in range(40)], hours=200, weather=weather)
    lives, born = [], {}
    for event in trace.events:
        if event.event is Happening.UP:
            born[event.node] = event.time_s
        elif event.event is Happening.KILL:
            lives.append(event.time_s - born[event.node])
    lives.sort()
    median = lives[len(lives) // 2]
    assert median == pytest.approx(1200, rel=0.1)
    # An exponential of that median has a mean of 1.44 medians.
    assert sum(lives) / len(lives) > 2.5 * median


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3))
def test_generated_trace_reads_back_as_itself(seed: int, nodes: int, zones: int):
    weather = Weather(zones=zones, median_zone_s=3600, noticed_share=0.5)
    trace = generate(seed, [f"n{number}" for number in range(nodes)], hours=60, weather=weather)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{trace.name}.csv"
        path.write_text(trace.to_csv())
        assert Trace.load(path).events == trace.events


# -- the meter ---------------------------------------------------------------------------------------------------------


def test_meter_separates_start_idle_and_work():
    meter = metered(
        (10, node()),
        (13, worker()),
        (20, worked(Activity.ROLLOUT, 14, 20)),
        (22, WorkerLost(worker=WorkerId("n.1/0.1"), cause="killed")),
        (25, NodeLost(node=NodeId("n.1"), cause="killed")),
    )
    assert seconds(meter) == pytest.approx({"start": 3 + 3, "idle": 1 + 2, "rollout": 6})


def test_meter_never_counts_overlapping_reports_twice():
    meter = metered(
        (0, node()), (0, worker()), (5, worked(Activity.ROLLOUT, 0, 5)), (9, worked(Activity.PREVIEW, 4, 9))
    )
    assert seconds(meter) == pytest.approx({"rollout": 5, "preview": 4})


def test_meter_counts_every_slot_of_a_node_even_one_whose_worker_never_joined():
    meter = metered((0, node(slots=4)), (2, worker()))
    assert seconds(meter, at=10) == pytest.approx({"start": 2 + 3 * 10, "idle": 8})


def test_meter_ends_all_machines_with_the_last_record_before_a_restart():
    meter = metered((0, node()), (4, worker()), (500, RunResumed(attempt=2, wall=0.0)), (510, node("n.2")))
    assert seconds(meter, at=520) == pytest.approx({"start": 4 + 10})


def test_meter_does_not_bill_after_the_run_stopped():
    meter = metered((0, node()), (7, RunStopped(reason="done", finished=True)))
    assert seconds(meter, at=100) == pytest.approx({"start": 7})


def test_seconds_by_activity_add_up_to_wall_time_times_slots_at_every_record_of_a_run():
    meter, up, paid, before = CostMeter(), {}, 0.0, 0.0
    for record in story():
        paid += sum(up.values()) * (record.at - before)
        before = record.at
        if isinstance(record.event, NodeJoined):
            up[record.event.node] = record.event.slots
        elif isinstance(record.event, NodeLost):
            up.pop(record.event.node)
        meter.apply(record)
        assert math.fsum(tally.total for tally in meter.tallies()) == pytest.approx(paid, abs=1e-6)
    assert paid > 300


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.sampled_from(["up", "down", "worker", "lost", "work"]),
        st.integers(0, 1),
        st.floats(-4, 1),
        st.floats(0, 5),
        st.sampled_from(list(Activity)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(EVENTS)
def test_seconds_add_up_whatever_is_reported_and_whenever(reports):
    meter, now, up, paid, lives = CostMeter(), 0.0, set(), 0.0, [0, 0]
    for seq, (after, kind, number, offset, length, activity) in enumerate(reports):
        name = f"n{number}.1"
        paid += 2 * len(up) * after
        now += after
        lives[number] += kind == "worker"
        process = f"{name}/0.{lives[number]}"
        event: AnyEvent = {
            "up": node(name, slots=2),
            "down": NodeLost(node=NodeId(name), cause="x"),
            "worker": worker(process),
            "lost": WorkerLost(worker=WorkerId(process), cause="x"),
            "work": worked(activity, now + offset, now + offset + length, process),
        }[kind]
        meter.apply(Record(seq, now, event))
        up = up | {name} if kind == "up" else up - {name} if kind == "down" else up
        assert math.fsum(tally.total for tally in meter.tallies()) == pytest.approx(paid, abs=1e-6)


# -- dollars -----------------------------------------------------------------------------------------------------------


def test_bill_of_a_hand_computed_hour():
    meter = metered(
        (0, node("r.1", slot_class=SlotClass.RESERVED)),
        (0, worker("r.1/0.1")),
        (0, node("s.1", slots=2)),
        (0, worker("s.1/0.1")),
        (0, worker("s.1/1.1")),
        (1800, worked(Activity.ROLLOUT, 0, 1800, "s.1/0.1")),
        (3600, worked(Activity.TRAIN, 1800, 3600, "r.1/0.1")),
        (3600, worked(Activity.PREVIEW, 1800, 3600, "s.1/1.1")),
    )
    table = PriceTable.load()
    bill = settle(meter.tallies(), table, reserved_slots=1)
    assert bill.dollars == pytest.approx(55.04 / 8 + 2 * 20.63 / 8)
    assert bill.all_reserved == pytest.approx(3 * 55.04 / 8)
    # Half an hour of rollouts and half an hour of training, on one reserved slot; previews are left out.
    assert bill.reserved_only == pytest.approx(55.04 / 8)
    assert bill.reserved_only_hours == pytest.approx(1.0)
    assert (bill.table, bill.date, bill.digest) == (table.name, table.date, table.digest)
    assert bill.seconds(SlotClass.SPOT)[Activity.IDLE] == pytest.approx(3600)


def test_bill_with_an_unknown_price_row_leaves_it_out_and_reports_its_seconds():
    meter = metered((0, node(price="sold-out")), (0, node("m.1")), (60, RunStopped(reason="x")))
    bill = settle(meter.tallies(), PriceTable.load(), reserved_slots=0)
    assert bill.unpriced_seconds == pytest.approx(60)
    assert bill.dollars == pytest.approx(20.63 / 8 / 60)
    assert bill.all_reserved is None
    assert bill.reserved_only_hours is None
