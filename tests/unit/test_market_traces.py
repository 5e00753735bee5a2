"""Recorded traces: what a run of n nodes would hold of them, and the transformations of a trace."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.market.holding import hold
from spotlight.control.market.recorded import Counts
from spotlight.control.market.traces import Happening, Trace, TraceEvent, in_order
from spotlight.core.errors import ConfigError
from spotlight.core.work import NoticeKind
from spotlight.pools.config import MarketConfig

HOUR = 3600.0
COUNTS = "t_s,n\n0,2\n600,0\n1200,3\n1800,1\n3600,1\n"
EVENTS = "t_s,op,node\n0,add,a\n0,add,b\n600,remove,a\n900,add,c\n"
SKYPILOT = json.dumps({"metadata": {"gap_seconds": 600}, "data": [2, 0, 3, 1, 1, 1]})
BAMBOO = '[0, "add", {"nodes": ["a", "b"]}]\n[60000, "no-op", {"nodes": []}]\n[600000, "remove", {"nodes": ["a"]}]\n'
GROUP_LOG = "2021-12-11, 23:50:00, 2\n2021-12-12, 00:00:00, 0\n2021-12-12, 00:10:00, 3\n2021-12-12, 00:20:00, 1\n"


def written(folder: Path, text: str, name: str = "market.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def events_of(trace: Trace) -> list[tuple[float, str, str]]:
    return [(event.time_s, event.node, event.event.value) for event in trace.events]


def held_at(trace: Trace, time_s: float) -> list[str]:
    return sorted(
        life.node for life in trace.stays() if life.start_s <= time_s and (life.lost_s is None or life.lost_s > time_s)
    )


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [COUNTS, SKYPILOT, GROUP_LOG])
def test_counts_in_any_format_become_the_same_nodes(tmp_path: Path, text: str):
    trace = Trace.load(written(tmp_path, text, "market.txt"))
    assert events_of(trace) == [
        (0, "spot-1", "up"),
        (0, "spot-2", "up"),
        (600, "spot-1", "kill"),
        (600, "spot-2", "kill"),
        (1200, "spot-1", "up"),
        (1200, "spot-2", "up"),
        (1200, "spot-3", "up"),
        (1800, "spot-2", "kill"),
        (1800, "spot-3", "kill"),
    ]


def test_counts_keep_the_end_of_their_recording(tmp_path: Path):
    assert Trace.load(written(tmp_path, COUNTS)).seconds == 3600
    assert Trace.load(written(tmp_path, SKYPILOT)).seconds == 6 * 600


@pytest.mark.parametrize(
    "text", [EVENTS.replace("900,add,c\n", ""), BAMBOO, f"[{BAMBOO.strip().replace(chr(10), ',')}]"]
)
def test_named_nodes_in_any_format_become_the_runs_nodes(tmp_path: Path, text: str):
    trace = Trace.load(written(tmp_path, text, "market.json"))
    assert events_of(trace) == [(0, "spot-1", "up"), (0, "spot-2", "up"), (600, "spot-1", "kill")]


def test_file_is_known_by_the_digest_of_its_bytes_through_every_transformation(tmp_path: Path):
    one, other = written(tmp_path, COUNTS, "a.csv"), written(tmp_path, COUNTS + "4000,1\n", "b.csv")
    trace = Trace.load(one)
    assert len(trace.digest) == 16
    assert trace.digest != Trace.load(other).digest
    assert trace.window(0.1, 0.5).with_notice(30).compressed(2).digest == trace.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t_s,n\n0,2\n600,1\n300,2\n", "line 4 of .* at 300 s, after one at 600 s; sort"),
        ("t_s,n\n0,2\n600,-1\n", "line 3 of .* counts -1 nodes.*whole number from 0"),
        ("t_s,n\n0,2\n600,1.5\n", "counts 1.5 nodes"),
        ("t_s,n\n0,many\n", "line 2 of .* n as 'many'"),
        ("t_s,n\n0\n", "n as 'None'"),
        ("t_s,n\n-5,1\n", "at -5 s, but a trace begins at 0"),
        ("t_s,n\n0,0\n9,0\n", "never counts a node"),
        ("t_s,n\n", "never counts a node"),
        ("t_s,op,node\n0,join,a\n", "line 2 of .* 'join', which is not an operation"),
        ("t_s,op,node\n0,add,a\n5,add,a\n", "'add' for a, but that node is present already"),
        ("t_s,op,node\n0,add,a\n5,remove,b\n", "'remove' for b, but that node is not present"),
        ("t_s,op,node\n0,add,\n", "names no node"),
        ("t_s,op,node\n9,add,a\n5,remove,a\n", "at 5 s, after one at 9 s"),
        ("t_s,op,node\n", "has no events"),
        ('{"data": [1, 2]}', "is not a trace in JSON .*metadata"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "gap_seconds as 0"),
        ('{"metadata": {"gap_seconds": 60}, "data": [1, -1]}', "count 1 of .* counts -1 nodes"),
        ('{"metadata": {"gap', "is not a trace in JSON"),
        (
            '[0, "add", {"nodes": ["a"]}]\n[5, "burn", {"nodes": ["a"]}]',
            "entry 2 of .* 'burn', which is not an operation",
        ),
        ('[0, "add"]', "an entry that is not"),
        ("2021-12-11, 11:11:30, 5\n2021-12-11, 11:10:30, 5\n", "line 2 of .* at -60 s"),
        ("2021-12-11, 11:11:30, 5\nhello\n", "line 2 of .* is 'hello'"),
        ("a,b\n1,2\n", "begins with 'a,b', which is not a known format"),
        ("", "begins with ''"),
    ],
)
def test_bad_recorded_trace_is_refused_in_one_sentence(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message) as refusal:
        Trace.load(written(tmp_path, text))
    assert "\n" not in str(refusal.value)


def test_trace_that_is_no_text_is_refused(tmp_path: Path):
    path = tmp_path / "market.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a text file"):
        Trace.load(path)


# -- what a run holds --------------------------------------------------------------------------------------------------


def test_run_holds_no_more_nodes_than_it_has_and_sees_no_loss_beyond_them(tmp_path: Path):
    trace = Trace.load(written(tmp_path, "t_s,n\n0,16\n600,9\n1200,7\n"), nodes=8)
    assert trace.nodes == [f"spot-{number}" for number in range(1, 9)]
    assert [(kill.time_s, kill.node) for kill in trace.kills] == [(1200, "spot-8")]


def test_falling_count_takes_the_newest_node(tmp_path: Path):
    trace = Trace.load(written(tmp_path, "t_s,n\n0,3\n60,1\n120,2\n180,1\n240,3\n300,2\n"))
    assert held_at(trace, 200) == ["spot-1"]
    assert [kill.node for kill in trace.kills if kill.time_s == 300] == ["spot-3"]


def test_waiting_node_takes_over_when_a_held_one_goes(tmp_path: Path):
    lines = "t_s,op,node\n0,add,a\n0,add,b\n0,add,c\n60,remove,b\n90,remove,c\n"
    trace = Trace.load(written(tmp_path, lines), nodes=2)
    assert events_of(trace)[2:] == [(60, "spot-2", "kill"), (60, "spot-2", "up"), (90, "spot-2", "kill")]


def test_own_trace_is_cut_to_the_first_nodes_of_a_smaller_run():
    whole, half = Trace.load("bulk"), Trace.load("bulk", nodes=4)
    assert half.nodes == ["spot-1", "spot-2", "spot-3", "spot-4"]
    assert [event for event in whole.events if event.node in half.nodes] == list(half.events)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=30), st.integers(1, 8))
def test_run_holds_exactly_what_is_obtainable_and_wanted(deltas: list[tuple[int, int]], nodes: int):
    steps, time_s = [], 0.0
    for delta, count in deltas:
        time_s += delta
        steps.append((time_s, count))
    changes = list(hold(Counts(tuple(steps)), nodes))
    events = [
        TraceEvent(change.time_s, change.node, Happening.UP if change.came else Happening.KILL) for change in changes
    ]
    trace = in_order("any", events)
    for at, count in dict(steps).items():
        assert len(held_at(trace, at)) == min(count, nodes)


# -- transformations ---------------------------------------------------------------------------------------------------

UP, NOTICE, KILL = Happening.UP, Happening.NOTICE, Happening.KILL


def test_notice_is_added_before_every_loss_but_never_before_the_node_came(tmp_path: Path):
    trace = Trace.load(written(tmp_path, "t_s,n\n0,1\n600,0\n700,1\n760,0\n"))
    warned = trace.with_notice(120)
    notices = [(event.time_s, event.seconds) for event in warned.events if event.event is NOTICE]
    assert notices == [(480, 120), (700, 60)]
    assert all(warned.noticed(kill) for kill in warned.kills)
    assert warned.with_notice(0).events == trace.events


def test_new_notice_replaces_the_traces_own_and_leaves_advice_alone():
    events = (
        TraceEvent(0, "a", UP),
        TraceEvent(10, "a", NOTICE, 5),
        TraceEvent(90, "a", NOTICE, 10),
        TraceEvent(100, "a", KILL),
    )
    trace = Trace("t", events).with_notice(30)
    notices = [event for event in trace.events if event.event is NOTICE]
    assert [(event.time_s, trace.notice_kind(event)) for event in notices] == [
        (10, NoticeKind.ADVISORY),
        (70, NoticeKind.IMMINENT),
    ]
    with pytest.raises(ConfigError, match="-1 s before"):
        trace.with_notice(-1)


def test_window_begins_with_the_nodes_that_are_up_and_their_notices():
    events = (
        TraceEvent(0, "a", UP),
        TraceEvent(0, "b", UP),
        TraceEvent(1 * HOUR, "b", KILL),
        TraceEvent(1.9 * HOUR, "a", NOTICE, 0.2 * HOUR),
        TraceEvent(2.1 * HOUR, "a", KILL),
        TraceEvent(3 * HOUR, "b", UP),
        TraceEvent(9 * HOUR, "b", KILL),
    )
    window = Trace("t", events).window(2, 4)
    assert [(round(event.time_s / HOUR, 3), event.node, event.event) for event in window.events] == [
        (0, "a", UP),
        (0, "a", NOTICE),
        (0.1, "a", KILL),
        (1, "b", UP),
    ]
    assert window.events[1].seconds == pytest.approx(0.1 * HOUR)
    assert window.seconds == 4 * HOUR
    assert window.name == "t[2h+4h]"


@pytest.mark.parametrize(("start_h", "hours"), [(48, 1), (-1, 2), (0, 0)])
def test_window_outside_the_trace_is_refused(start_h: float, hours: float):
    with pytest.raises(ConfigError, match="cannot be cut from it"):
        Trace.load("calm").window(start_h, hours)


@settings(max_examples=40)
@given(st.integers(0, 40 * 60), st.integers(30, 8 * 60), st.sampled_from([0, 30, 120, 3600]))
def test_window_of_a_trace_has_the_nodes_that_the_trace_has_then(start_min: int, minutes: int, notice_s: float):
    trace = Trace.load("bulk")
    window = trace.with_notice(notice_s).window(start_min / 60, minutes / 60)
    for minute in (0, minutes // 3, minutes - 1):
        # Times in the trace have one decimal, so nothing happens five hundredths after a minute.
        offset = minute * 60 + 0.05
        assert held_at(window, offset) == held_at(trace, start_min * 60 + offset)


def test_stays_of_nodes_end_where_the_trace_takes_them(tmp_path: Path):
    trace = Trace.load(written(tmp_path, "t_s,n\n0,1\n600,0\n700,1\n760,0\n800,1\n900,1\n"))
    assert [life.start_s for life in trace.stays()] == [0, 700, 800]
    assert [life.lost_s for life in trace.stays()] == [600, 760, None]


# -- what is shipped, and what a recipe asks for -----------------------------------------------------------------------


def mean_nodes(trace: Trace, hours: float) -> float:
    ends = [(life, hours * HOUR if life.lost_s is None else life.lost_s) for life in trace.stays()]
    return sum(max(0.0, end - life.start_s) for life, end in ends) / (hours * HOUR)


def bulks(trace: Trace) -> Counter[float]:
    return Counter(kill.time_s for kill in trace.kills)


def test_calm_trace_keeps_most_of_eight_nodes_for_two_days():
    trace = Trace.load("calm")
    assert len(trace.nodes) == 8
    assert mean_nodes(trace, 48) == pytest.approx(7.64, abs=0.05)
    assert 0.5 <= len(trace.kills) / 48 <= 1.0
    assert max(bulks(trace).values()) <= 4


def test_bulk_trace_takes_six_or_more_at_once_again_and_again_with_hours_of_scarcity():
    trace = Trace.load("bulk")
    big = [time_s for time_s, count in bulks(trace).items() if count >= 6]
    assert len(big) >= 4
    assert min(later - sooner for sooner, later in pairwise(big)) >= 2 * HOUR
    scarce = sum(len(held_at(trace, minute * 60.0)) <= 2 for minute in range(48 * 60)) / 60
    assert scarce >= 12
    unannounced = sum(not trace.noticed(kill) for kill in trace.kills) / len(trace.kills)
    assert 0.05 <= unannounced <= 0.3


def test_recipe_sets_nodes_notice_and_speed_of_its_trace(tmp_path: Path):
    path = written(tmp_path, COUNTS)
    trace = MarketConfig(trace=str(path), notice_s=30, speed=10).replayed(nodes=2)
    assert trace is not None
    assert trace.nodes == ["spot-1", "spot-2"]
    assert {event.seconds for event in trace.events if event.event is NOTICE} == {3}
    assert trace.seconds == 360
    assert MarketConfig(trace=None).replayed(nodes=2) is None


def test_recipe_begins_its_trace_at_an_hour_with_the_nodes_up_then_and_keeps_its_last_event(tmp_path: Path):
    path = written(tmp_path, "t_s,n\n0,2\n1800,1\n5400,2\n7200,0\n")
    trace = MarketConfig(trace=str(path), start_h=1.0, speed=2.0).replayed(nodes=2)
    assert trace is not None
    assert events_of(trace) == [
        (0, "spot-1", "up"),
        (900, "spot-2", "up"),
        (1800, "spot-1", "kill"),
        (1800, "spot-2", "kill"),
    ]


def test_start_after_the_end_of_the_trace_is_refused_in_one_sentence(tmp_path: Path):
    path = written(tmp_path, "t_s,n\n0,2\n7200,0\n")
    with pytest.raises(ConfigError, match=r"market.start_h is 2 but the trace .* is 2.00 hours long"):
        MarketConfig(trace=str(path), start_h=2.0).replayed(nodes=2)


def test_several_traces_share_the_nodes_evenly_and_each_follows_its_own(tmp_path: Path):
    early = written(tmp_path, "t_s,n\n0,9\n600,0\n3600,0\n", "early.csv")
    late = written(tmp_path, "t_s,n\n0,0\n600,1\n1200,9\n1800,9\n", "late.csv")
    trace = MarketConfig(trace=f"{early}+{late}", notice_s=30).replayed(5)
    assert held_at(trace, 0) == ["spot-1", "spot-2", "spot-3"]
    assert held_at(trace, 600) == ["spot-4"]
    assert held_at(trace, 1200) == ["spot-4", "spot-5"]
    assert (trace.name, trace.seconds) == ("early+late", 3600)
    assert {event.time_s for event in trace.events if event.event is Happening.NOTICE} == {570}
    later = MarketConfig(trace=f"{early}+{late}", start_h=1000 / 3600).replayed(5)
    assert held_at(later, 0) == ["spot-4"]


def test_joined_traces_have_a_digest_of_all_their_files(tmp_path: Path):
    files = [written(tmp_path, f"t_s,n\n0,{count}\n600,1\n", f"zone{count}.csv") for count in (2, 3, 4)]
    joined = {Trace.load(f"{one}+{other}", 2).digest for one in files for other in files}
    assert len(joined) == 9
    assert Trace.load(f"{files[0]}+{files[1]}").nodes == [f"spot-{number}" for number in range(1, 6)]


def test_file_with_a_plus_in_its_name_is_one_trace(tmp_path: Path):
    assert len(Trace.load(written(tmp_path, COUNTS, "a+b.csv"), 8).nodes) == 3


@pytest.mark.parametrize(
    ("names", "nodes", "words"),
    [("calm+bulk+demo", 2, "3 zones but the run has 2 spot nodes"), ("calm+nowhere", 4, "no trace 'nowhere'")],
)
def test_joined_traces_that_cannot_be_shared_or_found_are_refused(names, nodes, words):
    with pytest.raises(ConfigError, match=words):
        Trace.load(names, nodes)
