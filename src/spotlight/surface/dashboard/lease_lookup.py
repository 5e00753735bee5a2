"""The leases of a slot at a time: which samples its worker held, and in which attempt.

Leases are not part of the view, because a long run has millions. The newest of each slot are kept while the journal is
followed; older ones are read again from the segments around their time.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

import msgspec

from spotlight.core.events import Accepted, Leased, Record, Released, RunResumed, WorkerLost
from spotlight.core.journal import read
from spotlight.core.segments import FRAME, HEADER, list_segments
from spotlight.surface.timeline import row_name

NEWEST_KEPT = 256
"""Leases of each slot that are kept while a run is followed."""
MOST_SHOWN = 4
PARTS_KEPT = 2
"""Parts of the journal whose leases are kept."""
_decoder = msgspec.msgpack.Decoder(Record)


class SlotLease(msgspec.Struct, kw_only=True):
    """One attempt at one sample."""

    request: str
    attempt: int
    worker: str
    step: int
    """Denoising step at which it began."""
    start: float
    end: float | None = None
    """None while it is held."""
    outcome: str = ""
    """accepted, the reason of its release, or empty while it is held."""


class SlotMoment(msgspec.Struct, frozen=True, kw_only=True):
    """The leases of a slot at one time, the newest first."""

    row: str
    at: float
    leases: list[SlotLease]
    more: int


class LeaseLog:
    """Leases by slot, folded from records; `most` per slot, or all."""

    def __init__(self, since: float, most: int | None = None) -> None:
        self._since = since
        self._most = most
        self._rows: dict[str, deque[SlotLease]] = {}
        self._live: dict[str, SlotLease] = {}

    def apply(self, record: Record) -> None:
        match record.event:
            case Leased(request=request, attempt=attempt, worker=worker, step=step):
                lease = SlotLease(request=request, attempt=attempt, worker=worker, step=step, start=record.at)
                self._rows.setdefault(row_name(worker), deque(maxlen=self._most)).append(lease)
                self._live[request] = lease
            case Accepted(request=request):
                self._end(request, record.at, "accepted")
            case Released(request=request, reason=reason):
                self._end(request, record.at, reason.value.replace("_", " "))
            case WorkerLost(worker=worker):
                for held in [key for key, lease in self._live.items() if lease.worker == worker]:
                    self._end(held, record.at, "lost")
            case RunResumed():
                for held in list(self._live):
                    self._end(held, record.at, "restart")
            case _:
                pass

    def covers(self, row: str, at: float) -> bool:
        """Whether all leases of the slot at this time are here."""
        known = self._rows.get(row)
        is_full = known is not None and len(known) == self._most
        return at >= (known[0].start if known and is_full else self._since)

    def at(self, row: str, at: float) -> SlotMoment:
        held = [one for one in self._rows.get(row, ()) if one.start <= at and (one.end is None or one.end >= at)]
        held.sort(key=lambda one: (-one.start, one.request))
        return SlotMoment(row=row, at=at, leases=held[:MOST_SHOWN], more=max(0, len(held) - MOST_SHOWN))

    def _end(self, request: str, at: float, outcome: str) -> None:
        lease = self._live.pop(request, None)
        if lease is not None:
            lease.end, lease.outcome = at, outcome


class LeaseLookup:
    """Leases of one journal at any time."""

    def __init__(self, journal: Path, since: float) -> None:
        """`since` is the time from which records are given to `apply`."""
        self._journal = journal
        self._newest = LeaseLog(since, NEWEST_KEPT)
        self._parts: OrderedDict[tuple[int, int], LeaseLog] = OrderedDict()

    def apply(self, record: Record) -> None:
        self._newest.apply(record)

    def at(self, row: str, at: float) -> SlotMoment:
        return (self._newest if self._newest.covers(row, at) else self._part(at)).at(row, at)

    def _part(self, at: float) -> LeaseLog:
        """Leases of the segment of this time and its neighbours: a lease is much shorter than a segment."""
        starts = segment_starts(self._journal)
        place = max(0, bisect_right([start for _, start in starts], at) - 1)
        first, last = starts[max(0, place - 1)], starts[place + 2] if place + 2 < len(starts) else None
        key = (first[0], -1 if last is not None else list_segments(self._journal)[-1].stat().st_size)
        if key not in self._parts:
            log = LeaseLog(first[1])
            records: Iterable[Record] = read(self._journal, after=first[0] - 1)
            if last is not None:
                end = last[0]
                records = takewhile(lambda record: record.seq < end, records)
            for record in records:
                log.apply(record)
            self._parts[key] = log
            while len(self._parts) > PARTS_KEPT:
                self._parts.popitem(last=False)
        return self._parts[key]


def segment_starts(journal: Path) -> list[tuple[int, float]]:
    """Number and time of the first record of each segment, without reading the segments."""
    starts = []
    for path in list_segments(journal):
        with path.open("rb") as file:
            file.seek(HEADER.size)
            frame = file.read(FRAME.size)
            if len(frame) == FRAME.size:
                first = _decoder.decode(file.read(FRAME.unpack(frame)[1]))
                starts.append((first.seq, first.at))
    return starts or [(0, 0.0)]
