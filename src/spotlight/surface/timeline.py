"""The timeline of a run: one row per slot with its activities and losses, folded from records.

A row is a place that one machine after another fills: `spot-1/0` holds the workers `spot-1.1/0.1`, `spot-1.2/0.1`, ...
Invariant: spans of a row are ordered by time and do not overlap (tests/unit/test_projections.py).
"""

import itertools
from enum import StrEnum

import msgspec

from spotlight.core.events import (
    Crewing,
    Evaluated,
    Issued,
    IterationDone,
    NodeJoined,
    NodeLost,
    NoticeGiven,
    NoticeWithdrawn,
    Planned,
    Published,
    Reconnected,
    Record,
    RunResumed,
    RunStopped,
    StepCommitted,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, NoticeKind, SlotClass

JOIN_S = 0.25
"""Spans of one activity that are closer than this are merged: heartbeats cut long work into pieces."""
RECENT_S = 3.0
"""A worker that has reported no work for this long is idle."""
TOGETHER_S = 1.0
"""Losses of one node's workers within this time are one preemption."""
ORDERLY = frozenset({"exited", "drained"})
"""Causes of an end that was ordered: no loss."""
SHUTDOWN_S = 15.0
"""A run that stops releases its machines first: departures within this time, after all progress, are no losses."""


class TimelineState(StrEnum):
    """Present activity of a slot."""

    AWAY = "away"
    NOTICE = "notice"
    START = "start"
    LOAD = "load"
    ROLLOUT = "rollout"
    EVALUATION = "evaluation"
    PREVIEW = "preview"
    TRAIN = "train"
    ASSIST = "assist"
    SWITCH = "switch"
    PUBLISH = "publish"
    IDLE = "idle"


class TimelineSpan(msgspec.Struct):
    """One activity, in run seconds."""

    activity: Activity
    start: float
    end: float


class NoticeSpan(msgspec.Struct):
    """A notice, from its arrival to its deadline, loss, withdrawal or replacement, whichever comes first."""

    start: float
    end: float | None
    """None: open, because no time was announced."""
    kind: NoticeKind
    withdrawn: bool = False

    def holds_at(self, at: float) -> bool:
        return not self.withdrawn and self.start <= at and (self.end is None or at < self.end)

    def cut(self, at: float) -> None:
        """End it at this time at the latest."""
        self.end = at if self.end is None else min(self.end, at)


class WorkerStay(msgspec.Struct):
    """One worker on the slot; open while `end` is None."""

    worker: WorkerId
    start: float
    end: float | None = None


class SlotRow(msgspec.Struct, kw_only=True):
    """One slot through the whole run."""

    name: str
    slot_class: SlotClass
    zone: str = ""
    """Zone of its newest machine."""
    seconds: dict[Activity, float] = {}
    """Sums of its spans."""
    lives: list[WorkerStay] = []
    spans: list[TimelineSpan] = []
    notices: list[NoticeSpan] = []
    losses: list[tuple[float, bool]] = []
    """Time of a loss, and whether it was announced."""
    crewed_s: float = 0.0
    """Seconds in crews that have ended."""
    crewed_since: float | None = None
    """Time at which it joined its present crew."""

    @property
    def live(self) -> WorkerStay | None:
        return self.lives[-1] if self.lives and self.lives[-1].end is None else None

    def held_until(self, at: float) -> float:
        """Seconds with a machine so far."""
        return sum((at if life.end is None else life.end) - life.start for life in self.lives)

    def activity_shares(self, at: float) -> dict[Activity, float]:
        """Share of each activity in the time with a machine."""
        held = self.held_until(at)
        return {one: min(1.0, seconds / held) for one, seconds in self.seconds.items()} if held > 0 else {}

    def crew_share(self, at: float) -> float:
        """Share of crew membership in the time with a machine."""
        held = self.held_until(at)
        return min(1.0, self.crewed_until(at) / held) if held > 0 else 0.0

    def end_notice(self, at: float, withdrawn: bool = False) -> None:
        """End the slot's last notice, if it has one."""
        if self.notices:
            self.notices[-1].cut(at)
            self.notices[-1].withdrawn |= withdrawn

    def crewed_until(self, at: float) -> float:
        """Seconds in crews so far."""
        return self.crewed_s + (at - self.crewed_since if self.crewed_since is not None else 0.0)


class Preemption(msgspec.Struct, kw_only=True):
    """A spot node, or one worker of it, was taken."""

    at: float
    node: str
    noticed: bool
    workers: int


class Timeline(msgspec.Struct, kw_only=True):
    """Rows by name, in the order of first appearance."""

    at: float = 0.0
    rows: dict[str, SlotRow] = {}
    preemptions: list[Preemption] = []
    progressed: float = 0.0
    """Time of the last progress of the run; arrivals and losses of machines do not count."""
    restarts: list[float] = []
    """Times at which a later controller took over."""
    crews: dict[str, tuple[tuple[WorkerId, ...], ...]] = {}
    """Present crews by node."""
    crews_formed: int = 0
    reconnects: list[tuple[float, str]] = []
    """Times at which a node's broken connection was resumed, and the node."""

    def apply(self, record: Record) -> None:
        at = record.at
        match record.event:
            case NodeJoined() as joined:
                for number in range(joined.slots):
                    self._row(f"{joined.node}/{number}", joined.slot_class).zone = joined.zone
            case WorkerJoined(worker=worker, slot_class=slot_class):
                row = self._row(worker, slot_class)
                self._end_life(row, at)
                row.lives.append(WorkerStay(worker, at))
            case NoticeGiven(worker=worker, kind=kind, seconds=seconds):
                row = self._row(worker, SlotClass.SPOT)
                row.end_notice(at)
                row.notices.append(NoticeSpan(at, None if seconds is None else at + seconds, kind))
            case NoticeWithdrawn(worker=worker):
                self._row(worker, SlotClass.SPOT).end_notice(at, withdrawn=True)
            case WorkerLost() as lost:
                self._lose(lost.worker, at, lost.noticed, lost.cause)
            case NodeLost(node=node, cause=cause):
                self.crews.pop(node, None)
                for row in self._rows_of(node):
                    if row.live is not None:
                        self._lose(row.live.worker, at, _warned(row, at), cause)
            case Reconnected(node=node):
                self.reconnects.append((at, node))
            case Crewing() as crewing:
                self._regroup(crewing, at)
            case Worked() as worked:
                self._work(worked)
            case RunResumed():
                self._end_all(self.at)
                self.restarts.append(at)
            case RunStopped():
                self._end_all(at)
                self._drop_losses(max(self.progressed, at - SHUTDOWN_S))
            case Issued() | StepCommitted() | Published() | IterationDone() | Evaluated() | Planned():
                self.progressed = at
            case _:
                pass
        self.at = max(self.at, at)

    @property
    def failures(self) -> int:
        """Number of lost reserved workers; these are not preemptions."""
        return sum(len(row.losses) for row in self.rows.values() if row.slot_class is SlotClass.RESERVED)

    def ordered(self) -> list[SlotRow]:
        """Reserved rows first, then spot, each by name."""
        return sorted(self.rows.values(), key=lambda row: (row.slot_class is SlotClass.SPOT, row.name))

    def state(self, row: SlotRow) -> TimelineState:
        """The last reported activity of the slot; a notice has priority over it."""
        if row.live is None:
            return TimelineState.AWAY
        if row.notices and row.notices[-1].holds_at(self.at) and row.notices[-1].start >= row.live.start:
            return TimelineState.NOTICE
        if not row.spans or row.spans[-1].end <= row.live.start:
            return TimelineState.START
        return (
            TimelineState(row.spans[-1].activity.value)
            if self.at - row.spans[-1].end <= RECENT_S
            else TimelineState.IDLE
        )

    def _row(self, worker: str, slot_class: SlotClass) -> SlotRow:
        name = row_name(worker)
        return self.rows.setdefault(name, SlotRow(name=name, slot_class=slot_class))

    def _rows_of(self, node: str) -> list[SlotRow]:
        """Rows of the slots that this incarnation of a node fills."""
        return [row for row in self.rows.values() if row.live and row.live.worker.startswith(f"{node}/")]

    def _regroup(self, crewing: Crewing, at: float) -> None:
        before = self.crews.pop(crewing.node, ())
        self.crews_formed += len(set(crewing.crews) - set(before))
        if crewing.crews:
            self.crews[crewing.node] = crewing.crews
        members = {worker for crew in crewing.crews for worker in crew}
        for row in self._rows_of(crewing.node):
            row.crewed_s = row.crewed_until(at)
            row.crewed_since = at if row.live is not None and row.live.worker in members else None

    def _work(self, worked: Worked) -> None:
        row = self.rows.get(row_name(worked.worker))
        if row is None or worked.activity is Activity.IDLE:
            return
        last = row.spans[-1] if row.spans else None
        start = max(worked.start, last.end) if last else worked.start
        if worked.end <= start:
            return
        seconds = row.seconds
        seconds[worked.activity] = seconds.get(worked.activity, 0.0) + worked.end - start
        if last and last.activity is worked.activity and start - last.end <= JOIN_S:
            # The gap belongs to the merged span.
            seconds[worked.activity] += start - last.end
            last.end = worked.end
        else:
            row.spans.append(TimelineSpan(worked.activity, start, worked.end))

    def _lose(self, worker: WorkerId, at: float, noticed: bool, cause: str) -> None:
        row = self.rows.get(row_name(worker))
        if row is None or row.live is None or row.live.worker != worker:
            return
        self._end_life(row, at)
        if cause in ORDERLY:
            return
        row.losses.append((at, noticed))
        if row.slot_class is SlotClass.RESERVED:
            return
        node = worker.rpartition("/")[0]
        recent = itertools.takewhile(lambda taken: at - taken.at <= TOGETHER_S, reversed(self.preemptions))
        same = next((taken for taken in recent if taken.node == node), None)
        if same is not None:
            same.workers += 1
        else:
            self.preemptions.append(Preemption(at=at, node=node, noticed=noticed, workers=1))

    def _drop_losses(self, after: float) -> None:
        """Remove losses after this time: these machines were released."""
        self.preemptions = [taken for taken in self.preemptions if taken.at <= after]
        for row in self.rows.values():
            row.losses = [(at, noticed) for at, noticed in row.losses if at <= after]

    def _end_life(self, row: SlotRow, at: float) -> None:
        if row.live is not None:
            row.live.end = at
        row.crewed_s, row.crewed_since = row.crewed_until(at), None
        row.end_notice(at)

    def _end_all(self, at: float) -> None:
        self.crews.clear()
        for row in self.rows.values():
            self._end_life(row, at)


def row_name(worker: str) -> str:
    """`spot-1/0` for `spot-1.3/0.2` and `spot-1.3/0`: without incarnation numbers."""
    node, _, process = worker.rpartition("/")
    return f"{node.rpartition('.')[0] or node}/{process.partition('.')[0]}"


def _warned(row: SlotRow, at: float) -> bool:
    """Whether the slot's worker had a notice that was not withdrawn."""
    last = row.notices[-1] if row.live and row.notices else None
    return row.live is not None and last is not None and not last.withdrawn and row.live.start <= last.start <= at
