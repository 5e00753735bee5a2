"""The slots of a run: state, machines, losses and shares of activities, by slot or by class and zone."""

import re
from collections.abc import Iterable

import msgspec

from spotlight.core.work import Activity, SlotClass
from spotlight.surface.activity_names import SPANNED
from spotlight.surface.projections import RunView
from spotlight.surface.timeline import SlotRow, TimelineState

MOST_SLOTS = 96
"""Slots that are shown one by one; a larger pool is shown by class and zone."""


class LossStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of lost machines and workers."""

    preemptions: int
    noticed: int
    unnoticed: int
    spot_workers: int
    reserved_workers: int
    restarts: int


class SlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """One slot, or all slots of one class and zone."""

    name: str
    slot_class: SlotClass
    zone: str
    slots: int
    state: str
    """Present state of a slot; of several, the number with a machine."""
    machines: int
    losses: int
    unannounced: int
    busy: float
    """Share of the time with a machine."""
    shares: dict[Activity, float]
    crew: float
    """Share of the time with a machine that was spent in crews."""


class TimelinePanel(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    slots: int
    is_grouped: bool
    lines: list[SlotLine]
    losses: LossStatus
    notices: int
    withdrawn: int
    crews_formed: int
    regroups: int
    reconnects: int
    iterations: int


def timeline_panel(view: RunView) -> TimelinePanel:
    rows = view.timeline.ordered()
    is_grouped = len(rows) > MOST_SLOTS
    notices = [notice for row in rows for notice in row.notices]
    return TimelinePanel(
        seconds=view.at,
        slots=len(rows),
        is_grouped=is_grouped,
        lines=[_group(view, *each) for each in grouped(rows).items()]
        if is_grouped
        else [_line(view, row) for row in by_place(rows)],
        losses=loss_status(view),
        notices=len(notices),
        withdrawn=sum(notice.withdrawn for notice in notices),
        crews_formed=view.timeline.crews_formed,
        regroups=len(view.crews.regroups),
        reconnects=len(view.timeline.reconnects),
        iterations=len(view.iterations),
    )


def loss_status(view: RunView) -> LossStatus:
    line = view.timeline
    noticed = sum(taken.noticed for taken in line.preemptions)
    return LossStatus(
        preemptions=len(line.preemptions),
        noticed=noticed,
        unnoticed=len(line.preemptions) - noticed,
        spot_workers=sum(taken.workers for taken in line.preemptions),
        reserved_workers=line.failures,
        restarts=len(line.restarts),
    )


def by_place(rows: Iterable[SlotRow]) -> list[SlotRow]:
    """Reserved rows first, then spot, each by zone and name."""
    return sorted(rows, key=lambda row: (row.slot_class is SlotClass.SPOT, row.zone, _natural(row.name)))


def _natural(name: str) -> list[tuple[int, str]]:
    """Key that sorts spot-9 before spot-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def grouped(rows: Iterable[SlotRow]) -> dict[tuple[SlotClass, str], list[SlotRow]]:
    """Rows by class and zone."""
    groups: dict[tuple[SlotClass, str], list[SlotRow]] = {}
    for row in by_place(rows):
        groups.setdefault((row.slot_class, row.zone), []).append(row)
    return groups


def group_name(slot_class: SlotClass, zone: str) -> str:
    return f"{slot_class.value} {zone}".rstrip()


def _line(view: RunView, row: SlotRow) -> SlotLine:
    shares = row.activity_shares(view.at)
    return SlotLine(
        name=row.name,
        slot_class=row.slot_class,
        zone=row.zone,
        slots=1,
        state=view.timeline.state(row).value,
        machines=len(row.lives),
        losses=len(row.losses),
        unannounced=sum(not noticed for _, noticed in row.losses),
        busy=min(1.0, sum(shares.values())),
        shares={one: shares[one] for one in SPANNED if one in shares},
        crew=row.crew_share(view.at),
    )


def _group(view: RunView, place: tuple[SlotClass, str], rows: list[SlotRow]) -> SlotLine:
    held = sum(row.held_until(view.at) for row in rows)
    sums = {one: sum(row.seconds.get(one, 0.0) for row in rows) for one in SPANNED}
    shares: dict[Activity, float] = {}
    if held:
        shares = {one: min(1.0, seconds / held) for one, seconds in sums.items() if seconds}
    here = sum(view.timeline.state(row) is not TimelineState.AWAY for row in rows)
    return SlotLine(
        name=group_name(*place),
        slot_class=place[0],
        zone=place[1],
        slots=len(rows),
        state=f"{here:,} of {len(rows):,} present",
        machines=sum(len(row.lives) for row in rows),
        losses=sum(len(row.losses) for row in rows),
        unannounced=sum(not noticed for row in rows for _, noticed in row.losses),
        busy=min(1.0, sum(shares.values())),
        shares=shares,
        crew=sum(row.crewed_until(view.at) for row in rows) / held if held else 0.0,
    )
