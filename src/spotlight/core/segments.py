"""The files of a journal: the bytes of a segment, and the distinction between a torn tail and damage.

    segment-000000.log = header, frame, frame, ...
    header             = magic, schema, seq of the first record, checksum of these
    frame              = mark, length and checksum of the payload, payload (msgpack of one Record)

The mark is a byte that msgpack never uses, so the next valid frame after damage is found quickly. Invariant: bytes are
cut silently only at the very end of the last segment and only if no valid frame follows them; anything else is
`JournalCorrupt` (tests/unit/test_journal_damage.py: a tear at every byte, a flip at every byte).
"""

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.errors import InputError
from spotlight.core.events import SCHEMA, Checkpointed, Record
from spotlight.core.run_version import other_version

MAGIC = b"SPOTJRNL"
MARK = b"\xc1\xc1"
HEADER = struct.Struct("<8sIQI")
FRAME = struct.Struct("<2sII")
CHECKSUM = struct.Struct("<I")
MAX_PAYLOAD = 64 << 20
"""Largest payload in bytes, room for a million request ids; a longer length is damage."""
TORN_LIMIT = 4 << 20
"""Largest torn tail in bytes that a crash can leave; more is damage, and cutting it would lose history."""
FIRST_TORN_LIMIT = 4096
"""Largest torn tail in bytes of a run's first record, which is small."""

_pack, _checksum = FRAME.pack, zlib.crc32
_decoder = msgspec.msgpack.Decoder(Record)


class JournalCorrupt(InputError):
    """A record inside the journal is damaged: no file is changed, and later records are not used."""

    def __init__(
        self, message: str, segment: str = "", offset: int = 0, seq: int = 0, checkpoint: Checkpointed | None = None
    ) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset
        self.seq = seq
        self.checkpoint = checkpoint
        """The last checkpoint recorded before the damage."""


def pack_header(first_seq: int) -> bytes:
    plain = HEADER.pack(MAGIC, SCHEMA, first_seq, 0)[: -CHECKSUM.size]
    return plain + CHECKSUM.pack(zlib.crc32(plain))


def pack_frame(payload: bytes) -> bytes:
    size = len(payload)
    if size > MAX_PAYLOAD:
        raise ValueError(f"a record has {size} bytes, and readers accept at most {MAX_PAYLOAD}; split its event.")
    return _pack(MARK, size, _checksum(payload)) + payload


def segment_name(number: int) -> str:
    return f"segment-{number:06d}.log"


def list_segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.log"))


@dataclass(frozen=True)
class Segment:
    """One segment in memory, up to its last valid frame."""

    path: Path
    data: bytes
    first_seq: int
    offsets: list[int]
    """Offsets of the valid frames."""
    end: int
    """Offset after the last valid frame."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.offsets)

    @property
    def torn_bytes(self) -> int:
        return len(self.data) - self.end

    def record(self, index: int) -> Record:
        start = self.offsets[index]
        _, length, _ = FRAME.unpack_from(self.data, start)
        body = start + FRAME.size
        try:
            record = _decoder.decode(self.data[body : body + length])
        except msgspec.MsgspecError as error:
            if _is_foreign(self.data[body : body + length]):
                what = f"a record of an unknown kind ({error}; record {self.first_seq + index} of its journal)"
                raise other_version(run_of(self.path), what) from error
            raise self._corrupt(start, self.first_seq + index, f"it cannot be read ({error})") from error
        if record.seq != self.first_seq + index:
            raise self._corrupt(start, self.first_seq + index, f"it has the number {record.seq}")
        if not math.isfinite(record.at):
            raise self._corrupt(start, self.first_seq + index, f"its time is {record.at}, which no clock shows")
        return record

    def check_end(self, last: bool) -> None:
        """Raise JournalCorrupt unless the valid frames end the segment, or a torn record ends the journal."""
        if self.torn_bytes > (TORN_LIMIT if self.offsets or self.first_seq else FIRST_TORN_LIMIT):
            raise self._corrupt(self.end, self.next_seq, f"{self.torn_bytes} bytes follow that are no record")
        if self.torn_bytes and not last:
            raise self._corrupt(self.end, self.next_seq, "it is damaged or cut, and later segments follow")
        if self.torn_bytes and next_valid_frame(self.data, self.end + 1) is not None:
            raise self._corrupt(self.end, self.next_seq, "its checksum is wrong, and valid records follow")

    def _corrupt(self, offset: int, seq: int, why: str) -> JournalCorrupt:
        return JournalCorrupt(
            f"record {seq} of the journal ({self.path}, byte {offset}) is damaged: {why}",
            self.path.name,
            offset,
            seq,
        )


def load_segment(path: Path, number: int, first_seq: int) -> Segment:
    """Read segment `number` and find its valid frames; raise JournalCorrupt unless it starts at record `first_seq`."""
    data = path.read_bytes()
    found_seq = _unpack_header(path, data, first_seq)
    if path.name != segment_name(number) or found_seq != first_seq:
        raise JournalCorrupt(
            f"record {first_seq} of the journal is missing: {segment_name(number)} should start with it, "
            f"and {path} starts with {found_seq}",
            path.name,
            0,
            first_seq,
        )
    offsets = []
    end = HEADER.size
    while (after := frame_end(data, end)) is not None:
        offsets.append(end)
        end = after
    return Segment(path, data, first_seq, offsets, end)


def frame_end(data: bytes, start: int) -> int | None:
    """Return the end of the frame at `start`; None if there is no valid one."""
    if start + FRAME.size > len(data):
        return None
    mark, length, checksum = FRAME.unpack_from(data, start)
    end: int = start + FRAME.size + length
    if mark != MARK or length > MAX_PAYLOAD or end > len(data):
        return None
    return end if zlib.crc32(memoryview(data)[start + FRAME.size : end]) == checksum else None


def next_valid_frame(data: bytes, start: int) -> int | None:
    """Return the offset of the first valid frame at or after `start`."""
    found = data.find(MARK, start)
    while found >= 0:
        if frame_end(data, found) is not None:
            return found
        found = data.find(MARK, found + 1)
    return None


def no_journal(folder: Path) -> InputError:
    return InputError(f"there is no journal in {folder}; a run creates it when it starts; check the run's name.")


def read_segments(folder: Path, first: int = 0) -> Iterator[Segment]:
    """Yield the checked segments from the one with record `first` on; earlier ones are not read.

    `JournalCorrupt` names the last checkpoint before the damage.
    """
    paths = list_segments(folder)
    if not paths:
        raise no_journal(folder)
    start, seq = segment_of(paths, first)
    for number, path in list(enumerate(paths))[start:]:
        try:
            segment = load_segment(path, number, seq)
            segment.check_end(last=number == len(paths) - 1)
        except JournalCorrupt as error:
            raise with_checkpoint(folder, error) from error
        yield segment
        seq = segment.next_seq


def segment_of(paths: Sequence[Path], record: int) -> tuple[int, int]:
    """Number and first record of the segment that has this record, from the headers alone; the last if none has it."""
    for number in range(len(paths) - 1, -1, -1):
        with paths[number].open("rb") as file:
            header = file.read(HEADER.size)
        try:
            first = _unpack_header(paths[number], header, record)
        except JournalCorrupt:
            continue  # Reading from an earlier segment reports the damage.
        if first <= record:
            return number, first
    return 0, 0


def with_checkpoint(folder: Path, error: JournalCorrupt) -> JournalCorrupt:
    """Return the error with the last checkpoint before the damage, and advice to use it."""
    checkpoint = None
    seq = 0
    for number, path in enumerate(list_segments(folder)):
        try:
            segment = load_segment(path, number, seq)
            for index in range(min(len(segment.offsets), error.seq - seq)):
                event = segment.record(index).event
                checkpoint = event if isinstance(event, Checkpointed) else checkpoint
        except JournalCorrupt:
            break
        seq = segment.next_seq
        if seq >= error.seq:
            break
    offer = (
        f"start a new run from the last good checkpoint before it, {checkpoint.path} ({checkpoint.step} steps)"
        if checkpoint
        else "start the run anew, because no checkpoint was made before it"
    )
    return JournalCorrupt(
        f"{error}; later records cannot be trusted, so no file was changed; restore the file from a copy, or {offer}.",
        error.segment,
        error.offset,
        error.seq,
        checkpoint,
    )


def _unpack_header(path: Path, data: bytes, expected_seq: int) -> int:
    magic, schema, first_seq, checksum = HEADER.unpack_from(data.ljust(HEADER.size, b"\0"))
    if magic != MAGIC or checksum != zlib.crc32(data[: HEADER.size - CHECKSUM.size]):
        raise JournalCorrupt(
            f"record {expected_seq} of the journal cannot be found: the header of {path} is damaged or cut",
            path.name,
            0,
            expected_seq,
        )
    if schema != SCHEMA:
        raise other_version(run_of(path), f"a journal of format {schema} instead of {SCHEMA}")
    return int(first_seq)


def _is_foreign(payload: bytes) -> bool:
    """Whether a payload whose checksum is right is a record, of an event that this version does not have."""
    try:
        found = msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"seq", "at", "event"} <= found.keys()


def run_of(segment: Path) -> Path:
    """The folder of the run that a segment belongs to."""
    return segment.parent.parent
