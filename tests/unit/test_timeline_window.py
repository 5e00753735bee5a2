"""Parts of the timeline for the page's canvas: bounded by the screen, whatever the run's length and pool."""

import msgspec
import pytest
from story_journal import story

from spotlight.core.events import NodeJoined, Record, Worked, WorkerJoined
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.dashboard.timeline_window import CODES, TimelineIndex
from spotlight.surface.projections import RunView


def activities(row, start: int, stop: int) -> set[Activity]:
    names = {code: activity for activity, code in CODES.items()}
    runs = [row.runs[n : n + 3] for n in range(0, len(row.runs), 3)]
    return {names[code] for first, end, code in runs if first < stop and end > start}


def test_window_shows_what_the_slots_did_in_it_with_losses_and_notices():
    view = RunView.of(story())
    window = TimelineIndex(view).window(36.0, 44.0, 80)
    assert [row.name for row in window.rows] == ["reserved-1/0", "spot-1/0", "spot-1/1", "spot-2/0"]
    spot = window.rows[1]
    assert activities(spot, 0, 34) == {Activity.ROLLOUT}
    assert spot.losses == [(pytest.approx(39.5), True)]
    assert spot.notices == [(pytest.approx(37.5), pytest.approx(39.5), "imminent", False)]
    assert activities(spot, 36, 80) == set(), "there is no machine"
    assert all(start <= 44.0 and end >= 36.0 for row in window.rows for start, end in row.held)


def test_window_never_has_more_runs_than_bins():
    index = TimelineIndex(RunView.of(story(iterations=200)))
    for bins in (10, 300, 10**9):
        window = index.window(0.0, 3300.0, bins)
        assert window.bins <= 4000
        assert all(len(row.runs) <= 3 * window.bins for row in window.rows)


def test_pool_larger_than_a_screen_is_shown_by_class_and_zone():
    records, slots = [], 400
    for number in range(slots):
        node, zone = NodeId(f"spot-{number}.1"), f"zone-{number % 2}"
        worker = WorkerId(f"{node}/0.1")
        events = [
            NodeJoined(node=node, slot_class=SlotClass.SPOT, slots=1, zone=zone),
            WorkerJoined(worker=worker, node=node, slot_class=SlotClass.SPOT, rows=1),
            Worked(worker=worker, activity=Activity.ROLLOUT, start=10.0, end=20.0 if number % 4 else 15.0),
        ]
        records += [Record(len(records) + n, 0.0 if n < 2 else 20.0, event) for n, event in enumerate(events)]
    window = TimelineIndex(RunView.of(records)).window(0.0, 20.0, 4)
    assert window.is_grouped
    assert [(row.name, row.slots) for row in window.rows] == [("spot zone-0", 200), ("spot zone-1", 200)]
    rolling = CODES[Activity.ROLLOUT]
    assert window.rows[0].stack[rolling] == [0.0, 0.0, 200.0, 100.0]
    assert window.rows[1].stack[rolling] == [0.0, 0.0, 200.0, 200.0]
    assert window.rows[0].present == [200.0] * 4
    assert len(msgspec.json.encode(window)) < 4000


def test_rows_stand_by_class_zone_and_name():
    view = RunView.of(story(iterations=1))
    for name, zone in (("spot-1/0", "b"), ("spot-1/1", "b"), ("spot-2/0", "a")):
        view.timeline.rows[name].zone = zone
    window = TimelineIndex(view).window(0.0, 10.0, 10)
    assert [(row.group, row.name) for row in window.rows] == [
        ("reserved", "reserved-1/0"),
        ("spot a", "spot-2/0"),
        ("spot b", "spot-1/0"),
        ("spot b", "spot-1/1"),
    ]
