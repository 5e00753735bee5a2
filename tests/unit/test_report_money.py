"""The cost section: every state of a slot has a name and a colour, and the parts add up."""

import re

import pytest
from market_stories import node, worked, worker
from shown_panels import shown, text_of

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import AnyEvent, Crewing, Leased, NodeLost, Record, Released
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, ReleaseReason, RequestId, SlotClass
from spotlight.surface.panels.cost_panel import burn_rate, busy_share
from spotlight.surface.projections import RunView

ONE, TWO = WorkerId("n.1/0.1"), WorkerId("n.1/1.1")
HOUR = 3600.0


def seen(*timed: tuple[float, AnyEvent]) -> RunView:
    return RunView.of(Record(seq, at, event) for seq, (at, event) in enumerate(timed))


def regrouped_and_lost() -> RunView:
    """Two spot slots for an hour: a crew that takes six minutes to form, and work of which half is done again."""
    request = RequestId("rollout/0/0/1")
    return seen(
        (0, node(slots=2)),
        (0, worker(ONE)),
        (0, worker(TWO)),
        (0.5 * HOUR, Crewing(node=NodeId("n.1"), epoch=1, crews=((ONE, TWO),), reason="r", seconds=0.1 * HOUR)),
        (0.5 * HOUR, Leased(request=request, attempt=1, worker=ONE)),
        (HOUR, worked(Activity.ROLLOUT, 0.5 * HOUR, HOUR, ONE)),
        (HOUR, Released(request=request, attempt=1, reason=ReleaseReason.LOST, step=5, redone=5)),
    )


def test_cost_section_has_the_cost_of_regrouping_and_lost_work():
    text = text_of(shown(regrouped_and_lost(), "cost")).partition("activity GPU-hours cost")[2]
    parts = {
        label: (float(hours), float(cost)) for label, hours, cost in re.findall(r"([a-z ]+) ([\d.]+) \$([\d.]+)", text)
    }
    assert {label.strip(): hours for label, (hours, _) in parts.items()} == {
        "roll out": 0.25,
        "lost work": 0.25,
        "regroup": 0.2,
        "idle": 1.3,
    }
    assert sum(cost for _, cost in parts.values()) == pytest.approx(round(2 * 20.63 / 8, 2))


def test_waiting_for_a_crew_and_lost_work_are_not_busy():
    (line,) = regrouped_and_lost().bill(PriceTable.load()).lines
    assert busy_share(line.seconds) == pytest.approx(0.125)


def test_timeline_names_no_state_that_it_cannot_show():
    html = shown(regrouped_and_lost(), "timeline")
    named = text_of(html.partition('<ul class="legend">')[2].partition("</ul>")[0])
    named += text_of(html.partition("<thead>")[2].partition("</thead>")[0])
    assert "roll out" in named
    assert "regroup" not in named
    assert "lost work" not in named


def test_stand_ins_have_their_own_line_and_do_not_count_as_reserved():
    view = seen(
        (0, node("reserved-1.1", slot_class=SlotClass.RESERVED)),
        (0, worker("reserved-1.1/0.1")),
        (0, node("stand-in-1.1", slot_class=SlotClass.RESERVED)),
        (HOUR, worked(Activity.TRAIN, 0, HOUR, "reserved-1.1/0.1")),
        (HOUR, NodeLost(node=NodeId("stand-in-1.1"), cause="given back")),
    )
    text = text_of(shown(view, "cost"))
    assert re.search(r"stand-in AWS p5\.48xlarge, H100 \$6\.88 1\.000", text)
    assert view.bill(PriceTable.load()).reserved_only_hours == pytest.approx(1.0)


def test_meter_shows_what_the_slots_cost_per_hour_while_they_are_held():
    view, prices = regrouped_and_lost(), PriceTable.load()
    assert burn_rate(view, prices) == pytest.approx(2 * 20.63 / 8)
    assert "$5.16 per hour at present" in text_of(shown(view, "cost"))
    view.apply(Record(view.seq + 1, HOUR, NodeLost(node=NodeId("n.1"), cause="killed")))
    assert burn_rate(view, prices) == 0.0
    assert "per hour at present" not in text_of(shown(view, "cost"))
