"""The page shows slot time by activity: idle first, and shares that add up."""

import re

import pytest
from market_stories import node, worked, worker
from shown_panels import rows_of, shown

from spotlight.core.events import AnyEvent, IterationDone, Record
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.activity_names import LABELS
from spotlight.surface.projections import RunView
from spotlight.surface.report.report_page import inline_style

TRAINS, SPOT = "reserved-1.1/0.1", "spot-1.1/0.1"


def seen(*timed: tuple[float, AnyEvent]) -> RunView:
    return RunView.of(Record(seq, at, event) for seq, (at, event) in enumerate(timed))


def pipelined() -> RunView:
    """One slot that trains and one spot slot, for 100 s each."""
    return seen(
        (0, node("reserved-1.1", slot_class=SlotClass.RESERVED)),
        (0, worker(TRAINS, trains=True)),
        (0, node("spot-1.1")),
        (0, worker(SPOT, trains=False)),
        (100, worked(Activity.ASSIST, 0, 30, TRAINS)),
        (100, worked(Activity.SWITCH, 30, 32, TRAINS)),
        (100, worked(Activity.TRAIN, 32, 90, TRAINS)),
        (100, worked(Activity.PUBLISH, 90, 95, TRAINS)),
        (100, worked(Activity.ROLLOUT, 0, 60, SPOT)),
        (100, worked(Activity.PREVIEW, 60, 75, SPOT)),
    )


def test_table_begins_with_what_was_idle_and_names_every_kind_by_class():
    table = rows_of(shown(pipelined(), "slot_time"))
    assert next(iter(table)) == "idle"
    assert {kind: shares for kind, shares in table.items() if kind != "GPU-hours held"} == {
        "idle": ["5.0 %", "25 %"],
        "train": ["58 %", "0 %"],
        "roll out": ["0 %", "60 %"],
        "help to roll out": ["30 %", "0 %"],
        "preview": ["0 %", "15 %"],
        "write weights": ["5.0 %", "0 %"],
        "change role": ["2.0 %", "0 %"],
    }
    assert table["GPU-hours held"] == ["0.028", "0.028"]


def test_bar_of_a_class_has_one_block_per_kind_as_wide_as_its_share():
    bars = re.findall(r'<svg class="bar"(.*?)</svg></figure>', shown(pipelined(), "slot_time"), re.DOTALL)
    blocks = [re.findall(r'<svg x="([\d.]+)%" width="([\d.]+)%".*?act-(\w+)"', bar) for bar in bars]
    assert [sum(float(width) for _, width, _ in bar) for bar in blocks] == pytest.approx([100.0, 100.0])
    assert [(kind, width, left) for left, width, kind in blocks[1]] == [
        ("rollout", "60.000", "0.000"),
        ("preview", "15.000", "60.000"),
        ("idle", "25.000", "75.000"),
    ]


def test_idle_of_each_iteration_is_shown_once_there_are_two():
    done = [(at, IterationDone(iteration=n, rollout_s=0, train_s=0, reward=0)) for n, at in enumerate((40.0, 90.0))]
    view = seen(
        (0, node("spot-1.1")),
        (0, worker(SPOT, trains=False)),
        (10, worked(Activity.ROLLOUT, 0, 10, SPOT)),
        *done,
        (100, worked(Activity.ROLLOUT, 40, 90, SPOT)),
    )
    assert rows_of(shown(view, "slot_time").partition("Idle in each iteration")[2]) == {
        "0": ["40 s", "75 %"],
        "1": ["50 s", "0 %"],
    }


@pytest.mark.parametrize("kind", list(Activity))
def test_every_kind_has_a_label_and_a_swatch(kind: Activity):
    assert LABELS[kind]
    assert re.search(rf"\.act-{kind.value}\b[^{{]*{{", inline_style()[0])


def test_run_without_machines_has_no_slot_time_section():
    assert shown(seen(), "slot_time") == ""
