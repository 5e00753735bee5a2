"""The view read through snapshots, sound or damaged, equals the view of the whole journal."""

import tempfile
from enum import StrEnum
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from story_journal import story

from spotlight.core.events import Record
from spotlight.core.journal import Journal, JournalConfig, Sync, read
from spotlight.surface.kept_view import latest, part_name
from spotlight.surface.projections import RunView

RECORDS = story()
SMALL = JournalConfig(sync=Sync.NEVER, segment_bytes=4096)
places = st.integers(0, len(RECORDS))


class SnapshotState(StrEnum):
    """State of a snapshot when it is read."""

    SOUND = "sound"
    DAMAGED = "damaged"
    CUT = "cut"
    OTHER_SHAPE = "of another shape"
    NONSENSE = "nonsense under the right name"


def write(journal: Journal, records: list[Record], snapshots: dict[int, SnapshotState]) -> None:
    view = RunView()
    for record in records:
        view.apply(journal.append(record.event))
        state = snapshots.get(record.seq)
        if state is None:
            continue
        name = "view 0.0.0 0123" if state is SnapshotState.OTHER_SHAPE else part_name()
        journal.snapshot({name: b"\x01" if state is SnapshotState.NONSENSE else view.to_bytes()})
        newest = max(journal.folder.glob("snapshot-*"))
        content = bytearray(newest.read_bytes())
        if state is SnapshotState.DAMAGED:
            content[len(content) // 2] ^= 1
        newest.write_bytes(content[: len(content) // 2] if state is SnapshotState.CUT else content)


@settings(max_examples=40)
@given(places, st.dictionaries(places, st.sampled_from(SnapshotState), max_size=3))
def test_view_through_snapshots_equals_the_view_of_the_whole_journal(
    length: int, snapshots: dict[int, SnapshotState]
) -> None:
    with tempfile.TemporaryDirectory() as folder, Journal.create(Path(folder), lambda: 0.0, SMALL) as journal:
        write(journal, RECORDS[:length], snapshots)
        assert latest(journal.folder) == RunView.of(read(journal.folder))


@settings(max_examples=40)
@given(places)
def test_reading_from_any_record_returns_the_records_after_it(after: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Journal.create(Path(folder), lambda: 0.0, SMALL) as journal:
        for record in [*RECORDS, *RECORDS[:100]]:
            journal.append(record.event)
        assert list(read(journal.folder, after)) == list(read(journal.folder))[after + 1 :]
