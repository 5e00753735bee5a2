"""When machines come, are warned and go: traces that a market replays against a pool.

A trace is CSV with the columns `time_s,node,event,seconds`:

    up      the node is there from now on (seconds 0)
    notice  it will be taken in `seconds`
    kill    it is gone (seconds 0)

Invariant: of every node, `up` and `kill` alternate, and a notice is given only to a node that is up
(tests/unit/test_market.py). `control/market/weather.py` makes traces.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from spotlight.assets import asset
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.work import NoticeKind

COLUMNS = ("time_s", "node", "event", "seconds")
PUNCTUALITY_S = 1.0
"""A kill this close to a notice's deadline is the one that was announced; times in a file are rounded."""


class Happening(StrEnum):
    """What a line of a trace tells."""

    UP = "up"
    NOTICE = "notice"
    KILL = "kill"


class TraceEvent(msgspec.Struct, frozen=True):
    """One line of a trace."""

    time_s: float
    node: str
    event: Happening
    seconds: float = 0.0
    """Of a notice: until the node is taken."""


class Trace(msgspec.Struct, frozen=True):
    """Events in the order of time."""

    name: str
    events: tuple[TraceEvent, ...]

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """A shipped trace by name, or a CSV file."""
        path = Path(source)
        if path.suffix != ".csv":
            if str(source) not in trace_names():
                raise ConfigError(f"there is no trace '{source}': {suggestion(str(source), trace_names())}")
            path = asset(f"traces/{source}.csv")
        if not path.is_file():
            raise ConfigError(f"the trace {path} does not exist; check the path, or name a shipped trace.")
        return cls(path.stem, _events(path.read_text(), str(path)))

    @property
    def nodes(self) -> list[str]:
        return sorted({event.node for event in self.events})

    @property
    def seconds(self) -> float:
        return self.events[-1].time_s

    @property
    def kills(self) -> list[TraceEvent]:
        return [event for event in self.events if event.event is Happening.KILL]

    def compressed(self, factor: float) -> Self:
        """The same events, `factor` times as fast, notices included."""
        if not 0 < factor < math.inf:
            raise ConfigError(f"a trace cannot be compressed {factor:g} times; choose a factor above 0.")
        events = tuple(
            TraceEvent(event.time_s / factor, event.node, event.event, event.seconds / factor) for event in self.events
        )
        return type(self)(self.name, events)

    def notice_kind(self, notice: TraceEvent) -> NoticeKind:
        """Imminent where the node is taken at the deadline or before it; advisory where it is not."""
        deadline = notice.time_s + notice.seconds + PUNCTUALITY_S
        taken = any(kill.node == notice.node and notice.time_s <= kill.time_s <= deadline for kill in self.kills)
        return NoticeKind.IMMINENT if taken else NoticeKind.ADVISORY

    def noticed(self, kill: TraceEvent) -> bool:
        """Whether the loss was announced during this life of the node."""
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


def in_order(name: str, events: Sequence[TraceEvent]) -> Trace:
    """A trace of these events; at one instant nodes go, then come, then are warned."""
    ranks = {Happening.KILL: 0, Happening.UP: 1, Happening.NOTICE: 2}
    ordered = sorted(events, key=lambda event: (event.time_s, ranks[event.event], event.node))
    _check(ordered, f"the trace '{name}'")
    return Trace(name, tuple(ordered))


def _events(text: str, where: str) -> tuple[TraceEvent, ...]:
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(
            f"the trace {where} has the columns {', '.join(reader.fieldnames or ()) or '(none)'}, but a trace must "
            f"have {', '.join(COLUMNS)}; write them as its first line."
        )
    events = [_event(row, f"line {number} of the trace {where}") for number, row in enumerate(reader, start=2)]
    if not events:
        raise ConfigError(f"the trace {where} has no events, so no node would ever come; add `up` lines.")
    _check(events, f"the trace {where}")
    return tuple(events)


def _event(row: Mapping[str, str | None], where: str) -> TraceEvent:
    kind = row["event"] or ""
    if kind not in list(Happening):
        raise ConfigError(f"{where} tells of '{kind}', which is no event: {suggestion(kind, list(Happening))}")
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
        raise ConfigError(f"{where} gives {column} as '{text}', which is no time in seconds; correct it.")
    return value


def _check(events: Sequence[TraceEvent], where: str) -> None:
    up: set[str] = set()
    before = 0.0
    for event in events:
        said = f"{where} says '{event.event.value}' of {event.node} at {event.time_s:g} s"
        if event.time_s < before:
            raise ConfigError(f"{said}, after an event at {before:g} s; sort its lines by time.")
        if event.event is Happening.UP and event.node in up:
            raise ConfigError(f"{said}, but that node is up already; add its 'kill' before.")
        if event.event is not Happening.UP and event.node not in up:
            raise ConfigError(f"{said}, but that node is not up then; add its 'up' before.")
        if event.event is Happening.UP:
            up.add(event.node)
        elif event.event is Happening.KILL:
            up.discard(event.node)
        before = event.time_s
