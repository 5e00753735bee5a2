"""Follows a journal while it is written: each call returns the records that were added, and reads only their bytes.

Invariant: the records of all calls are those of `journal.read`, each once and in order, wherever the writer or its
machine stops between two bytes (tests/unit/test_journal_tail.py). Followers do not disturb the writer.

    tail = JournalTail(run / "journal")
    tail.advance()               # all records so far
    tail.advance()               # those since then
"""

import math
from pathlib import Path

import msgspec

from spotlight.core.events import Record
from spotlight.core.journal import read
from spotlight.core.segments import FRAME, HEADER, frame_end, list_segments, segment_name, segment_of

CHUNK = 4 << 20
"""Bytes that are read at once; more if one record is longer."""
_decoder = msgspec.msgpack.Decoder(Record)


class JournalTail:
    """A place in a journal; `seq` is the number of the last record that was returned."""

    def __init__(self, folder: Path, after: int = -1) -> None:
        self.folder = folder
        self.seq = after
        self._number = -1
        """Number of the segment; -1 until the journal exists."""
        self._offset = HEADER.size
        self._next = 0
        """Number of the record at the offset."""
        self._checked = -1
        """Size of the segment at which what follows the offset was no damage."""

    def advance(self, most: int = 1 << 30) -> list[Record]:
        """Return the new records, at most `most`; none while there is no journal.

        Raise JournalCorrupt on damage, once all records before it were returned.
        """
        found: list[Record] = []
        if self._number < 0 and not self._open():
            return found
        while len(found) < most:
            before = self._offset
            found += self._read(most - len(found))
            if self._offset == before and not self._turn():
                if not found:
                    self._check()
                break
        return found

    def _open(self) -> bool:
        paths = list_segments(self.folder)
        if not paths:
            return False
        self._number, self._next = segment_of(paths, self.seq + 1)
        return True

    def _read(self, most: int) -> list[Record]:
        """Records at the offset, which moves behind them."""
        data = self._bytes(CHUNK)
        if len(data) >= FRAME.size:
            _, length, _ = FRAME.unpack_from(data)
            if FRAME.size + length > CHUNK == len(data):
                data = self._bytes(FRAME.size + length)
        found: list[Record] = []
        start = 0
        while len(found) < most and (end := frame_end(data, start)) is not None:
            if self._next > self.seq:
                record = self._decoded(data[start + FRAME.size : end])
                if record is None:
                    break
                found.append(record)
                self.seq = self._next
            self._next += 1
            start = end
        self._offset += start
        return found

    def _bytes(self, most: int) -> bytes:
        with (self.folder / segment_name(self._number)).open("rb") as file:
            file.seek(self._offset)
            return file.read(most)

    def _turn(self) -> bool:
        """Go on to the next segment, if the writer has and this one is read to its end."""
        if not (self.folder / segment_name(self._number + 1)).exists():
            return False
        if self._bytes(1):
            # The writer has finished this segment since it was read; else it is damaged, or of another version.
            data = self._bytes(CHUNK)
            end = frame_end(data, 0)
            return end is not None and (self._next <= self.seq or self._decoded(data[FRAME.size : end]) is not None)
        self._number, self._offset = self._number + 1, HEADER.size
        return True

    def _check(self) -> None:
        """Let the strict reader name the damage of what follows; a record that is being written is none."""
        size = (self.folder / segment_name(self._number)).stat().st_size
        if size > self._offset and size != self._checked:
            for _ in read(self.folder, after=self.seq):
                pass
            self._checked = size

    def _decoded(self, payload: bytes) -> Record | None:
        """The next record; None if the payload is another one, or none that can be read."""
        try:
            record = _decoder.decode(payload)
        except msgspec.MsgspecError:
            return None
        return record if record.seq == self._next and math.isfinite(record.at) else None
