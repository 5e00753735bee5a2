"""Reads traces of other projects, recognised by their content, as counts over time or changes of named nodes.

    t_s,n                                     CSV: nodes obtainable from t_s on
    t_s,op,node                               CSV: `add` or `remove` of a node
    {"metadata": {"gap_seconds": g}, "data"}  SkyPilot's spot traces: nodes obtainable, one number every g seconds
    [ms, "add", {"nodes": [...]}]             Bamboo's events, one array per line, as Parcae and SpotServe keep them too
    2021-12-11, 11:11:30, 55                  Bamboo's logs of managed groups: date, time, nodes held

Invariant: times never decrease, counts are integers from 0 up, a node that joins was away and one that leaves was
present; anything else is refused with its line (tests/unit/test_market_traces.py).
"""

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec

from spotlight.core.errors import ConfigError, suggestion

COUNT_COLUMNS = ("t_s", "n")
EVENT_COLUMNS = ("t_s", "op", "node")
OPERATIONS = ("add", "remove")
NEITHER = ("no-op", "migration")
"""Operations of Parcae's traces that concern no node."""
STAMPED = re.compile(r"(\d{4}-\d\d-\d\d)[ ,T]+(\d\d:\d\d:\d\d)\s*,\s*(\S+)")


class Counts(msgspec.Struct, frozen=True):
    """Number of obtainable nodes over time: a step function."""

    steps: tuple[tuple[float, int], ...]
    """Pairs of (start second, nodes); the last one may repeat the count to mark the end."""


class NodeChange(msgspec.Struct, frozen=True):
    """A named node joined or left."""

    time_s: float
    node: str
    came: bool


class NodeChanges(msgspec.Struct, frozen=True):
    """Changes of named nodes, by time."""

    events: tuple[NodeChange, ...]


class _Metadata(msgspec.Struct):
    gap_seconds: float


class _Sampled(msgspec.Struct):
    """Content of a SkyPilot trace file."""

    metadata: _Metadata
    data: list[float]


class _Nodes(msgspec.Struct):
    nodes: list[str] = []


def read_recorded(text: str, where: str) -> Counts | NodeChanges | None:
    """Parse the text; None if it has none of these formats."""
    text = text.strip()
    first = tuple(field.strip() for field in text.partition("\n")[0].split(","))
    if text.startswith("{"):
        return _counts(_sampled(text, where), where)
    if text.startswith("["):
        return _node_changes(_arrays(text, where), where)
    if first == COUNT_COLUMNS:
        return _counts(_counted(text, where), where)
    if first == EVENT_COLUMNS:
        return _node_changes(_listed(text, where), where)
    if STAMPED.match(text):
        return _counts(_stamped(text, where), where)
    return None


# -- the formats -------------------------------------------------------------------------------------------------------


def _counted(text: str, where: str) -> Iterator[tuple[float, float, str]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    for row in reader:
        at = f"line {reader.line_num} of the trace {where}"
        yield _number(row["t_s"], "t_s", at), _number(row["n"], "n", at), at


def _listed(text: str, where: str) -> Iterator[tuple[float, str, str, str]]:
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    for row in reader:
        at = f"line {reader.line_num} of the trace {where}"
        yield _number(row["t_s"], "t_s", at), row["op"] or "", row["node"] or "", at


def _sampled(text: str, where: str) -> Iterator[tuple[float, float, str]]:
    try:
        file = msgspec.json.decode(text, type=_Sampled)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the trace {where} is not a trace in JSON ({error}); it needs metadata.gap_seconds and a list of counts "
            "named data."
        ) from error
    if not 0 < file.metadata.gap_seconds < math.inf:
        raise ConfigError(
            f"the trace {where} gives gap_seconds as {file.metadata.gap_seconds:g}, so its counts have no times; "
            "correct it to a number above 0."
        )
    for number, count in enumerate(file.data):
        yield number * file.metadata.gap_seconds, count, f"count {number} of the trace {where}"
    if file.data:
        # The last count applies to its whole interval, like the others.
        yield len(file.data) * file.metadata.gap_seconds, file.data[-1], f"the end of the trace {where}"


def _stamped(text: str, where: str) -> Iterator[tuple[float, float, str]]:
    start: datetime | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        at = f"line {number} of the trace {where}"
        found = STAMPED.fullmatch(line.strip())
        try:
            moment = datetime.fromisoformat(f"{found[1]} {found[2]}") if found else None
        except ValueError:
            moment = None
        if found is None or moment is None:
            raise ConfigError(f"{at} is '{line[:60]}', not a date, a time and a count; correct it.")
        start = moment if start is None else start
        yield (moment - start).total_seconds(), _number(found[3], "count", at), at


def _arrays(text: str, where: str) -> Iterator[tuple[float, str, str, str]]:
    """Parse one array per line, or one array of all entries."""
    one_each = not text.removeprefix("[").lstrip().startswith("[")
    try:
        entries = (
            [msgspec.json.decode(line, type=tuple[float, str, _Nodes]) for line in text.splitlines() if line.strip()]
            if one_each
            else msgspec.json.decode(text, type=list[tuple[float, str, _Nodes]])
        )
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the trace {where} has an entry that is not [milliseconds, operation, {{nodes}}] ({error}); correct it."
        ) from error
    for number, (time_ms, operation, listed) in enumerate(entries, start=1):
        if operation in NEITHER and not listed.nodes:
            continue
        for node in listed.nodes or [""]:
            yield time_ms / 1000, operation, node, f"entry {number} of the trace {where}"


# -- the checks --------------------------------------------------------------------------------------------------------


def _counts(lines: Iterator[tuple[float, float, str]], where: str) -> Counts:
    steps: list[tuple[float, int]] = []
    for time_s, count, at in lines:
        _check_time(time_s, [time for time, _ in steps[-1:]], at)
        if count < 0 or count != int(count):
            raise ConfigError(f"{at} counts {count:g} nodes, but a count is a whole number from 0 up; correct it.")
        steps.append((time_s, int(count)))
    if not any(count for _, count in steps):
        raise ConfigError(f"the trace {where} never counts a node, so no node would ever join; use another trace.")
    return Counts(tuple(steps))


def _node_changes(lines: Iterator[tuple[float, str, str, str]], where: str) -> NodeChanges:
    events: list[NodeChange] = []
    present: set[str] = set()
    for time_s, operation, node, at in lines:
        _check_time(time_s, [event.time_s for event in events[-1:]], at)
        if operation not in OPERATIONS:
            raise ConfigError(f"{at} has '{operation}', which is not an operation: {suggestion(operation, OPERATIONS)}")
        if not node:
            raise ConfigError(f"{at} names no node; fill it in.")
        came = operation == "add"
        if came == (node in present):
            state = "present already" if came else "not present"
            raise ConfigError(f"{at} has '{operation}' for {node}, but that node is {state} then; correct the trace.")
        present.symmetric_difference_update({node})
        events.append(NodeChange(time_s, node, came))
    if not events:
        raise ConfigError(f"the trace {where} has no events, so no node would ever join; use another trace.")
    return NodeChanges(tuple(events))


def _check_time(time_s: float, before: Sequence[float], at: str) -> None:
    if not 0 <= time_s < math.inf:
        raise ConfigError(f"{at} is at {time_s:g} s, but a trace begins at 0; correct it.")
    if before and time_s < before[0]:
        raise ConfigError(f"{at} is at {time_s:g} s, after one at {before[0]:g} s; sort the trace by time.")


def _number(text: str | None, column: str, at: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{at} gives {column} as '{text}', which is not a number; correct it.")
    return value
