"""Reads a journal while another process writes it: each record once, in order, without reading a byte twice.

    tail = JournalTail(run / "journal", after=view.seq)
    for record in tail.new(): ...            # again and again; empty when nothing was written meanwhile

A record that is half written is returned by a later call. A controller that resumes cuts such a record, which is
after the last whole one and so was never returned (tests/unit/test_journal_tail.py).
"""

from collections.abc import Iterator
from pathlib import Path

from spotlight.core.events import Record
from spotlight.core.segments import HEADER, Segment, frame_end, list_segments, no_journal, segment_of, unpack_header


class JournalTail:
    """A position in a journal."""

    def __init__(self, folder: Path, after: int = -1) -> None:
        self._folder = folder
        self._seq = after + 1
        """Number of the next record."""
        self._segment: int | None = None
        self._offset = HEADER.size

    def new(self) -> Iterator[Record]:
        """All whole records that were written since the last call."""
        if self._segment is None:
            self._find()
        while True:
            yield from self._rest_of_segment()
            paths = list_segments(self._folder)
            if self._segment is None or self._segment + 1 >= len(paths):
                return
            # The writer begins a segment after the last record of the one before, which may be newer than the read.
            yield from self._rest_of_segment()
            self._segment, self._offset = self._segment + 1, HEADER.size
            with paths[self._segment].open("rb") as file:
                unpack_header(paths[self._segment], file.read(HEADER.size), self._seq)

    def _find(self) -> None:
        """Go to the segment with the next record; records before it are skipped."""
        paths = list_segments(self._folder)
        if not paths:
            raise no_journal(self._folder)
        self._segment, first = segment_of(paths, self._seq)
        wanted, self._seq = self._seq, first
        for _ in self._rest_of_segment(until=wanted):
            pass

    def _rest_of_segment(self, until: int | None = None) -> Iterator[Record]:
        """Records from the position to the end of the segment, or to record `until`."""
        assert self._segment is not None
        path = list_segments(self._folder)[self._segment]
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = 0
        while (after := frame_end(data, end)) is not None and self._seq != until:
            record = Segment(path, data, self._seq, [end], after).record(0)
            self._offset, self._seq, end = self._offset + after - end, self._seq + 1, after
            yield record
