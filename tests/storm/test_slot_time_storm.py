"""Slot time in storms: the kinds of every slot add up exactly to the time it was held, and the bill to the cent."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest
from market_stories import bubbles

from spotlight.control.market.bill import settle
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.occupancy import Occupancy, OpenSlot
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import NodeJoined, NodeLost, Record, RunResumed, RunStopped
from spotlight.core.journal import read
from spotlight.core.work import Activity
from spotlight.sim.faults import Storm
from spotlight.sim.setting import draw_setting
from spotlight.sim.storm import StormRun
from spotlight.sim.virtual_loop import run_virtually

SEEDS = range(6)
ALL_SEEDS = pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 12))])


@pytest.fixture(scope="module")
def storm_journal(tmp_path_factory: pytest.TempPathFactory):
    @cache
    def journal_of(seed: int) -> Sequence[Record]:
        folder: Path = tmp_path_factory.mktemp(f"storm-{seed}")

        async def main() -> None:
            setting = draw_setting(seed)
            await StormRun(setting, Storm(seed, setting.tempo), folder).run()

        run_virtually(main())
        return list(read(folder / "journal"))

    return journal_of


def held_seconds(records: Sequence[Record]) -> Fraction:
    """Seconds that slots were held, from the joins and losses of nodes alone."""
    up: dict[str, tuple[float, int]] = {}
    held, last = Fraction(), 0.0

    def end(nodes: list[str], at: float) -> Fraction:
        ended = [up.pop(node) for node in nodes]
        return sum(((Fraction(at) - Fraction(came)) * slots for came, slots in ended), Fraction())

    for record in records:
        match record.event:
            case NodeJoined(node=node, slots=slots):
                held += end([node] if node in up else [], record.at)
                up[node] = (record.at, slots)
            case NodeLost(node=node):
                held += end([node] if node in up else [], record.at)
            case RunResumed():
                held += end(list(up), last)
            case RunStopped():
                held += end(list(up), record.at)
        last = record.at
    return held + end(list(up), last)


@ALL_SEEDS
def test_kinds_of_every_slot_of_a_storm_add_up_to_the_time_it_was_held(storm_journal, seed: int) -> None:
    records, slots, tenures = storm_journal(seed), Occupancy(), {}

    def spent(slot: OpenSlot, activity: Activity, start: float, end: float) -> None:
        tenures.setdefault(id(slot), (slot, []))[1].append((activity, start, end))

    for record in records:
        slots.apply(record, spent)
    for slot, activity, start, end in slots.unreported(slots.at):
        spent(slot, activity, start, end)
    total = Fraction()
    for _, stretches in tenures.values():
        by_kind: dict[Activity, Fraction] = {}
        for kind, start, end in stretches:
            by_kind[kind] = by_kind.get(kind, Fraction()) + Fraction(end) - Fraction(start)
        assert sum(by_kind.values()) == Fraction(stretches[-1][2]) - Fraction(stretches[0][1])
        total += sum(by_kind.values())
    assert total == held_seconds(records)


@ALL_SEEDS
def test_bill_of_a_storm_by_kind_adds_up_to_the_cent_and_to_the_bubbles(storm_journal, seed: int) -> None:
    records, meter = storm_journal(seed), CostMeter()
    for record in records:
        meter.apply(record)
    bill, found = settle(meter.tallies(), PriceTable.load(), reserved_slots=1), bubbles(records)
    assert sum(bill.cents_by_activity().values()) == round(bill.dollars * 100)
    in_bubbles = sum(seconds for kinds in found.seconds.values() for seconds in kinds.values())
    assert sum(line.total_seconds for line in bill.lines) == pytest.approx(in_bubbles, rel=1e-12)


def test_storms_have_every_kind_of_slot_time(storm_journal) -> None:
    """Otherwise the sums would prove nothing about the missing kinds."""
    seen = {kind for seed in SEEDS for kinds in bubbles(storm_journal(seed)).seconds.values() for kind in kinds}
    # In a storm a change of role takes no time.
    assert set(Activity) - seen == {Activity.SWITCH}
