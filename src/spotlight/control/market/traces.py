"""Availability traces: when nodes join, receive a notice and are lost. A market replays them against a pool.

The native format is CSV with the columns `time_s,node,event,seconds`:

    up      the node joins (seconds 0)
    notice  the node is lost in `seconds`
    kill    the node is lost (seconds 0)

Traces from other projects (`recorded.py`) become nodes by the rule of `holding.py`; `weather.py` generates traces.
After the last event of a trace the nodes stay as they are. `a+b` joins two traces: a run that rents in two zones.

Invariant: `up` and `kill` of a node alternate, and only a node that is up receives a notice; every transformation
keeps that (tests/unit/test_market.py, tests/unit/test_market_traces.py).
"""

import csv
import hashlib
import io
import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Self

import msgspec

from spotlight.assets import asset
from spotlight.control.market.holding import NAME, hold
from spotlight.control.market.recorded import Counts, read_recorded
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.work import NoticeKind

COLUMNS = ("time_s", "node", "event", "seconds")
SEVERAL = "+"
"""Joins the names of several traces."""
PUNCTUALITY_S = 1.0
"""Tolerance in seconds between a notice's deadline and its kill; times in a file are rounded."""


class Happening(StrEnum):
    """Kind of a trace event."""

    UP = "up"
    NOTICE = "notice"
    KILL = "kill"


class TraceEvent(msgspec.Struct, frozen=True):
    """One line of a trace."""

    time_s: float
    node: str
    event: Happening
    seconds: float = 0.0
    """Seconds until the loss, for a notice."""


class NodeStay(msgspec.Struct, frozen=True, kw_only=True):
    """One stay of a node, from `start_s`, when it is billed, to its loss."""

    node: str
    start_s: float
    lost_s: float | None
    """Time of the loss; None: not in the trace."""
    notice_s: float | None
    """Seconds of notice before the loss; None: no notice."""


class Trace(msgspec.Struct, frozen=True, dict=True):
    """Events in the order of time."""

    name: str
    events: tuple[TraceEvent, ...]
    end_s: float | None = None
    """End of the recording, if known."""
    digest: str = ""
    """Digest of the trace's file."""

    @classmethod
    def load(cls, source: str | Path, nodes: int | None = None) -> Self:
        """Load a shipped trace by name, or a file in any known format, for a run with `nodes` spot nodes.

        Several, joined by `+`, are zones that share the nodes as evenly as possible, the first ones one more each.
        """
        zones = _zones(source)
        if len(zones) > 1:
            return cls._of_zones(zones, nodes)
        path = Path(source)
        if not path.suffix and path.name == str(source):
            if str(source) not in trace_names():
                raise ConfigError(f"there is no trace '{source}': {suggestion(str(source), trace_names())}")
            path = asset(f"traces/{source}.csv")
        if not path.is_file():
            raise ConfigError(f"the trace {path} does not exist; check the path, or name a shipped trace.")
        content = path.read_bytes()
        events, end_s = _read(content, str(path), nodes)
        return cls(path.stem, events, end_s, hashlib.blake2b(content, digest_size=8).hexdigest())

    @classmethod
    def _of_zones(cls, zones: Sequence[str], nodes: int | None) -> Self:
        if nodes is not None and nodes < len(zones):
            raise ConfigError(
                f"the trace {SEVERAL.join(zones)} has {len(zones)} zones but the run has {nodes} spot nodes "
                "(cluster.spot), and every zone needs one; name fewer zones or more nodes."
            )
        shares = [None if nodes is None else (nodes + left) // len(zones) for left in reversed(range(len(zones)))]
        traces = [cls.load(zone, share) for zone, share in zip(zones, shares, strict=True)]
        events: list[TraceEvent] = []
        first = 1
        for trace, share in zip(traces, shares, strict=True):
            names = {name: NAME.format(number) for number, name in enumerate(trace.nodes, start=first)}
            events += [msgspec.structs.replace(event, node=names[event.node]) for event in trace.events]
            first += len(names) if share is None else share
        name = SEVERAL.join(trace.name for trace in traces)
        digest = hashlib.blake2b("".join(trace.digest for trace in traces).encode(), digest_size=8).hexdigest()
        return cls(name, in_order(name, events).events, max(trace.seconds for trace in traces), digest)

    @property
    def nodes(self) -> list[str]:
        return sorted({event.node for event in self.events}, key=_natural)

    @property
    def seconds(self) -> float:
        last = self.events[-1].time_s if self.events else 0.0
        return last if self.end_s is None else max(self.end_s, last)

    @property
    def kills(self) -> list[TraceEvent]:
        return [event for event in self.events if event.event is Happening.KILL]

    def stays(self) -> list[NodeStay]:
        """All stays of all nodes, by start time."""
        stays: list[NodeStay] = []
        started: dict[str, TraceEvent] = {}
        warned: dict[str, float] = {}
        for event in self.events:
            match event.event:
                case Happening.UP:
                    started[event.node] = event
                case Happening.NOTICE:
                    warned[event.node] = event.time_s
                case Happening.KILL:
                    start, notice = started.pop(event.node), warned.pop(event.node, None)
                    stays.append(_stay(start, event.time_s, notice))
        stays += [_stay(start, None, None) for start in started.values()]
        return sorted(stays, key=lambda stay: (stay.start_s, _natural(stay.node)))

    def compressed(self, factor: float) -> Self:
        """Return the trace with all times, including notices, divided by `factor`."""
        if not 0 < factor < math.inf:
            raise ConfigError(f"a trace cannot be compressed {factor:g} times; choose a factor above 0.")
        events = tuple(
            TraceEvent(event.time_s / factor, event.node, event.event, event.seconds / factor) for event in self.events
        )
        end_s = None if self.end_s is None else self.end_s / factor
        return type(self)(self.name, events, end_s, self.digest)

    def with_notice(self, notice_s: float) -> Self:
        """Return the trace with a notice of `notice_s`, at most the length of the stay, before every loss; 0: none.

        This replaces the imminent notices; advisory notices, which no loss follows, stay.
        """
        if not 0 <= notice_s < math.inf:
            raise ConfigError(f"a loss cannot have a notice {notice_s:g} s before; choose 0 for no notice, or more.")
        kept = [
            event
            for event in self.events
            if event.event is not Happening.NOTICE or self.notice_kind(event) is NoticeKind.ADVISORY
        ]
        for stay in self.stays():
            if stay.lost_s is not None and notice_s:
                warned = max(stay.start_s, stay.lost_s - notice_s)
                kept.append(TraceEvent(warned, stay.node, Happening.NOTICE, stay.lost_s - warned))
        return self._of(kept)

    def window(self, start_h: float, hours: float) -> Self:
        """Return `hours` of the trace from `start_h` on, times from 0; nodes that are up at its start join at 0."""
        start, end = start_h * 3600, (start_h + hours) * 3600
        if not (0 <= start < self.seconds and 0 < hours < math.inf):
            raise ConfigError(
                f"the trace '{self.name}' has {self.seconds / 3600:g} hours, so {hours:g} hours from hour {start_h:g} "
                "on cannot be cut from it; choose a start within it and a length above 0."
            )
        events: list[TraceEvent] = []
        open_notices: dict[str, TraceEvent] = {}
        up: set[str] = set()
        for event in self.events:
            if event.time_s > start:
                break
            up = up | {event.node} if event.event is Happening.UP else up
            up = up - {event.node} if event.event is Happening.KILL else up
            open_notices.pop(event.node, None)
            if event.event is Happening.NOTICE:
                open_notices[event.node] = event
        for node in sorted(up, key=_natural):
            events.append(TraceEvent(0.0, node, Happening.UP))
            notice = open_notices.get(node)
            if notice is not None and notice.time_s + notice.seconds > start:
                left = notice.time_s + notice.seconds - start
                events.append(TraceEvent(0.0, node, Happening.NOTICE, left))
        for event in self.events:
            if start < event.time_s < end:
                events.append(TraceEvent(event.time_s - start, event.node, event.event, event.seconds))
        cut = in_order(f"{self.name}[{start_h:g}h+{hours:g}h]", events)
        return type(self)(cut.name, cut.events, end - start, self.digest)

    def _of(self, events: Sequence[TraceEvent]) -> Self:
        return type(self)(self.name, in_order(self.name, events).events, self.end_s, self.digest)

    def notice_kind(self, notice: TraceEvent) -> NoticeKind:
        """Imminent if the node is lost by the deadline, else advisory."""
        losses = self._losses.get(notice.node, ())
        first = bisect_left(losses, notice.time_s)
        is_lost = first < len(losses) and losses[first] <= notice.time_s + notice.seconds + PUNCTUALITY_S
        return NoticeKind.IMMINENT if is_lost else NoticeKind.ADVISORY

    @cached_property
    def _losses(self) -> dict[str, list[float]]:
        """Loss times by node."""
        losses: dict[str, list[float]] = {}
        for event in self.events:
            if event.event is Happening.KILL:
                losses.setdefault(event.node, []).append(event.time_s)
        return losses

    def noticed(self, kill: TraceEvent) -> bool:
        """True if a notice preceded this loss during the same stay."""
        warned = False
        for event in self.events:
            if event == kill:
                break
            if event.node == kill.node:
                warned = event.event is Happening.NOTICE or (warned and event.event is not Happening.UP)
        return warned

    def to_csv(self) -> str:
        lines = (
            f"{event.time_s:.10g},{event.node},{event.event.value},{event.seconds:.10g}\n" for event in self.events
        )
        return ",".join(COLUMNS) + "\n" + "".join(lines)


def trace_names() -> list[str]:
    return sorted(path.stem for path in asset("traces").glob("*.csv"))


def _zones(source: str | Path) -> list[str]:
    """The joined names; a file with a plus in its name is one trace."""
    return [str(source)] if Path(source).is_file() else str(source).split(SEVERAL)


def in_order(name: str, events: Sequence[TraceEvent]) -> Trace:
    """Sort events into a trace; at one instant losses come first, then joins, then notices."""
    ranks = {Happening.KILL: 0, Happening.UP: 1, Happening.NOTICE: 2}
    ordered = sorted(events, key=lambda event: (event.time_s, ranks[event.event], event.node))
    _check(ordered, f"the trace '{name}'")
    return Trace(name, tuple(ordered))


def _read(content: bytes, where: str, nodes: int | None) -> tuple[tuple[TraceEvent, ...], float | None]:
    """Return the events of a file and the end of its recording, if known."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the trace {where} is not a text file ({error.reason}); check the path.") from error
    recorded = read_recorded(text, where)
    if recorded is None:
        return _first(_events(text, where), nodes), None
    changes = hold(recorded, nodes)
    events = [
        TraceEvent(change.time_s, change.node, Happening.UP if change.came else Happening.KILL) for change in changes
    ]
    end_s = recorded.steps[-1][0] if isinstance(recorded, Counts) else recorded.events[-1].time_s
    return in_order(where, events).events, end_s


def _first(events: tuple[TraceEvent, ...], nodes: int | None) -> tuple[TraceEvent, ...]:
    """Return the events of the first `nodes` nodes by name; nodes are independent of each other."""
    if nodes is None:
        return events
    kept = set(sorted({event.node for event in events}, key=_natural)[:nodes])
    return tuple(event for event in events if event.node in kept)


def _natural(name: str) -> tuple[tuple[str, int], ...]:
    """Sort key that puts spot-2 before spot-10."""
    return tuple((text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name))


def _stay(start: TraceEvent, lost_s: float | None, warned_s: float | None) -> NodeStay:
    return NodeStay(
        node=start.node,
        start_s=start.time_s,
        lost_s=lost_s,
        notice_s=None if lost_s is None or warned_s is None else lost_s - warned_s,
    )


def _events(text: str, where: str) -> tuple[TraceEvent, ...]:
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(
            f"the trace {where} begins with '{text.partition(chr(10))[0][:60]}', which is not a known format; use the "
            f"columns {','.join(COLUMNS)}, or t_s,n, or t_s,op,node."
        )
    events = [_event(row, f"line {number} of the trace {where}") for number, row in enumerate(reader, start=2)]
    if not events:
        raise ConfigError(f"the trace {where} has no events, so no node would ever join; add `up` lines.")
    _check(events, f"the trace {where}")
    return tuple(events)


def _event(row: Mapping[str, str | None], where: str) -> TraceEvent:
    kind = row["event"] or ""
    if kind not in list(Happening):
        raise ConfigError(f"{where} has '{kind}', which is not an event: {suggestion(kind, list(Happening))}")
    if not row["node"]:
        raise ConfigError(f"{where} names no node; fill in the second column.")
    time_s, seconds = _seconds(row["time_s"], "time_s", where), _seconds(row["seconds"], "seconds", where)
    return TraceEvent(time_s, row["node"], Happening(kind), seconds)


def _seconds(text: str | None, column: str, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{where} gives {column} as '{text}', which is not a time in seconds; correct it.")
    return value


def _check(events: Sequence[TraceEvent], where: str) -> None:
    up: set[str] = set()
    before = 0.0
    for event in events:
        what = f"{where} has '{event.event.value}' for {event.node} at {event.time_s:g} s"
        if event.time_s < before:
            raise ConfigError(f"{what}, after an event at {before:g} s; sort its lines by time.")
        if event.event is Happening.UP and event.node in up:
            raise ConfigError(f"{what}, but that node is up already; add its 'kill' before.")
        if event.event is not Happening.UP and event.node not in up:
            raise ConfigError(f"{what}, but that node is not up then; add its 'up' before.")
        if event.event is Happening.UP:
            up.add(event.node)
        elif event.event is Happening.KILL:
            up.discard(event.node)
        before = event.time_s
