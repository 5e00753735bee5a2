"""The view of a run from its newest snapshot and what was recorded since: quick after millions of records.

Invariant: it equals the fold of the whole journal (tests/property/test_kept_view_property.py). A snapshot that is
damaged, or whose view has another shape or was folded by another version of the code, is not used: that costs time,
never truth.
"""

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from spotlight import __version__
from spotlight.core.journal import newest_snapshot, read
from spotlight.surface.projections import RunView

FOLD = 4
"""Counted up with every change of what a view makes of a record: a snapshot of another fold is not used."""


@cache
def part_name() -> str:
    """What a view of this code is kept as: another version, or other fields, have another name."""
    shape = msgspec.json.encode(msgspec.json.schema(RunView))
    return f"view {__version__} {FOLD} {hashlib.blake2b(shape, digest_size=8).hexdigest()}"


def latest(journal: Path) -> RunView:
    """The view of all records that there are now."""
    view = _kept(journal) or RunView()
    for record in read(journal, after=view.seq):
        view.apply(record)
    return view


def _kept(journal: Path) -> RunView | None:
    snapshot = newest_snapshot(journal)
    if snapshot is None or part_name() not in snapshot.parts:
        return None
    try:
        view = RunView.from_bytes(snapshot.parts[part_name()])
    except msgspec.MsgspecError:
        return None
    return view if view.seq == snapshot.seq else None
