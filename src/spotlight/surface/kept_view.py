"""The view of a run from its newest snapshot and the records since: quick after millions of records.

Invariant: it equals the fold of the whole journal (tests/property/test_kept_view_property.py). A snapshot that is
damaged, has another shape or comes from another version of the code is not used, which costs only time.
"""

import hashlib
from functools import cache
from pathlib import Path

import msgspec

from spotlight import __version__
from spotlight.core.journal import newest_snapshot, read
from spotlight.surface.projections import RunView

FOLD = 5
"""Incremented when a view folds a record differently: a snapshot of another fold is not used."""


@cache
def part_name() -> str:
    """Name of a snapshot's part; another version or other fields give another name."""
    shape = msgspec.json.encode(msgspec.json.schema(RunView))
    return f"view {__version__} {FOLD} {hashlib.blake2b(shape, digest_size=8).hexdigest()}"


def latest(journal: Path) -> RunView:
    """The view of all present records."""
    view = kept(journal)
    for record in read(journal, after=view.seq):
        view.apply(record)
    return view


def kept(journal: Path) -> RunView:
    """The view of the newest snapshot; an empty one if there is none that can be used."""
    return _kept(journal) or RunView()


def _kept(journal: Path) -> RunView | None:
    snapshot = newest_snapshot(journal)
    if snapshot is None or part_name() not in snapshot.parts:
        return None
    try:
        view = RunView.from_bytes(snapshot.parts[part_name()])
    except msgspec.MsgspecError:
        return None
    return view if view.seq == snapshot.seq else None
