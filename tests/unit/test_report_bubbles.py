"""The page shows slot time by activity: idle first, and shares that add up."""

import re

import pytest
from market_stories import node, worked, worker

from spotlight.core.events import AnyEvent, IterationDone, Record
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.projections import RunView
from spotlight.surface.report.page import STYLE
from spotlight.surface.report.slot_time import bubbles_section
from spotlight.surface.report.timeline_chart import LABELS

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


def rows(html: str) -> dict[str, list[str]]:
    found = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", html)
    return {head: re.findall(r"<td>(.*?)</td>", cells) for head, cells in found if "<td>" in cells}


def test_table_begins_with_what_was_idle_and_names_every_kind_by_class():
    table = rows(bubbles_section(pipelined()))
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
    bars = re.findall(r'<div class="bar">(.*?)</div></figure>', bubbles_section(pipelined()))
    widths = [re.findall(r'bg-(\w+)" style="flex:([\d.]+)"', bar) for bar in bars]
    assert [sum(float(width) for _, width in bar) for bar in widths] == pytest.approx([1.0, 1.0])
    assert dict(widths[1]) == {"rollout": "0.60000", "preview": "0.15000", "idle": "0.25000"}


def test_idle_of_each_iteration_is_shown_once_there_are_two():
    done = [(at, IterationDone(iteration=n, rollout_s=0, train_s=0, reward=0)) for n, at in enumerate((40.0, 90.0))]
    view = seen(
        (0, node("spot-1.1")),
        (0, worker(SPOT, trains=False)),
        (10, worked(Activity.ROLLOUT, 0, 10, SPOT)),
        *done,
        (100, worked(Activity.ROLLOUT, 40, 90, SPOT)),
    )
    assert rows(bubbles_section(view).partition("<details")[2]) == {"0": ["40 s", "75 %"], "1": ["50 s", "0 %"]}


@pytest.mark.parametrize("kind", list(Activity))
def test_every_kind_has_a_label_and_a_swatch(kind: Activity):
    assert LABELS[kind]
    assert f".act-{kind.value} {{" in STYLE.read_text()


def test_run_without_machines_has_no_slot_time_section():
    assert bubbles_section(seen()) == ""
