"""The files of a journal: what bytes a segment holds, and how to tell a torn tail from damage.

    segment-000000.log = header, frame, frame, ...
    header             = magic, schema, seq of the first record, checksum of these
    frame              = mark, length and checksum of the payload, payload (msgpack of one Record)

The mark is a byte that msgpack never uses, so the next sound frame after damage is found quickly. Invariant: bytes are
given up silently only at the very end of the last segment and only if no sound frame follows them; anything else is
`JournalCorrupt` (tests/unit/test_journal_damage.py: a tear at every byte, a flip at every byte).
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.errors import InputError
from spotlight.core.events import SCHEMA, Checkpointed, Record

MAGIC = b"SPOTJRNL"
MARK = b"\xc1\xc1"
HEADER = struct.Struct("<8sIQI")
FRAME = struct.Struct("<2sII")
CHECKSUM = struct.Struct("<I")
MAX_PAYLOAD = 64 << 20
"""A million request ids fit; a longer length is damage."""
TORN_LIMIT = 4 << 20
"""Bytes that a crash can leave of records being written; more is damage, and cutting it would lose history."""
FIRST_TORN_LIMIT = 4096
"""The same of a run's very first record, which is small."""

_pack, _checksum = FRAME.pack, zlib.crc32
_decoder = msgspec.msgpack.Decoder(Record)


class JournalCorrupt(InputError):
    """A record inside the journal is damaged: nothing is written, and nothing after it is believed."""

    def __init__(
        self, message: str, segment: str = "", offset: int = 0, seq: int = 0, checkpoint: Checkpointed | None = None
    ) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset
        self.seq = seq
        self.checkpoint = checkpoint
        """The last one that the sound records before the damage tell of."""


def pack_header(first_seq: int) -> bytes:
    plain = HEADER.pack(MAGIC, SCHEMA, first_seq, 0)[: -CHECKSUM.size]
    return plain + CHECKSUM.pack(zlib.crc32(plain))


def pack_frame(payload: bytes) -> bytes:
    size = len(payload)
    if size > MAX_PAYLOAD:
        raise ValueError(f"a record has {size} bytes and at most {MAX_PAYLOAD} are read back; split its event.")
    return _pack(MARK, size, _checksum(payload)) + payload


def segment_name(number: int) -> str:
    return f"segment-{number:06d}.log"


def list_segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.log"))


@dataclass(frozen=True)
class Segment:
    """One segment in memory, as far as it is sound."""

    path: Path
    data: bytes
    first_seq: int
    offsets: list[int]
    """Of its sound frames."""
    end: int
    """Where the sound part ends."""

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
            raise self._corrupt(start, self.first_seq + index, f"it cannot be read ({error})") from error
        if record.seq != self.first_seq + index:
            raise self._corrupt(start, self.first_seq + index, f"it says that it is number {record.seq}")
        return record

    def check_end(self, last: bool) -> None:
        """Raises unless what follows the sound part is nothing, or the torn end of the journal."""
        if self.torn_bytes > (TORN_LIMIT if self.offsets or self.first_seq else FIRST_TORN_LIMIT):
            raise self._corrupt(self.end, self.next_seq, f"{self.torn_bytes} bytes follow that are no record")
        if self.torn_bytes and not last:
            raise self._corrupt(self.end, self.next_seq, "it is damaged or cut, and later segments follow")
        if self.torn_bytes and next_sound(self.data, self.end + 1) is not None:
            raise self._corrupt(self.end, self.next_seq, "its checksum is wrong, and sound records follow")

    def _corrupt(self, offset: int, seq: int, why: str) -> JournalCorrupt:
        return JournalCorrupt(
            f"record {seq} of the journal ({self.path}, byte {offset}) is damaged: {why}",
            self.path.name,
            offset,
            seq,
        )


def load_segment(path: Path, number: int, first_seq: int) -> Segment:
    """Read a segment and find its sound frames; it must be the `number`th and start with record `first_seq`."""
    data = path.read_bytes()
    told = _unpack_header(path, data, first_seq)
    if path.name != segment_name(number) or told != first_seq:
        raise JournalCorrupt(
            f"record {first_seq} of the journal is missing: {segment_name(number)} should start with it, "
            f"and {path} starts with {told}",
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
    """Where the frame at `start` ends; None if there is no sound one."""
    if start + FRAME.size > len(data):
        return None
    mark, length, checksum = FRAME.unpack_from(data, start)
    end: int = start + FRAME.size + length
    if mark != MARK or length > MAX_PAYLOAD or end > len(data):
        return None
    return end if zlib.crc32(memoryview(data)[start + FRAME.size : end]) == checksum else None


def next_sound(data: bytes, start: int) -> int | None:
    """Where the first sound frame at or after `start` begins."""
    found = data.find(MARK, start)
    while found >= 0:
        if frame_end(data, found) is not None:
            return found
        found = data.find(MARK, found + 1)
    return None


def no_journal(folder: Path) -> InputError:
    return InputError(f"there is no journal in {folder}; it is made when a run starts; check the run's name.")


def read_segments(folder: Path, first: int = 0) -> Iterator[Segment]:
    """The segments from the one with record `first` on, each checked; those before it are not even looked at.

    `JournalCorrupt` names the last checkpoint before the damage.
    """
    paths = list_segments(folder)
    if not paths:
        raise no_journal(folder)
    start, seq = _segment_of(paths, first)
    for number, path in list(enumerate(paths))[start:]:
        try:
            segment = load_segment(path, number, seq)
            segment.check_end(last=number == len(paths) - 1)
        except JournalCorrupt as error:
            raise with_checkpoint(folder, error) from error
        yield segment
        seq = segment.next_seq


def _segment_of(paths: Sequence[Path], record: int) -> tuple[int, int]:
    """Number and first record of the segment that has this record, by the headers alone; the last, if none has it."""
    for number in range(len(paths) - 1, 0, -1):
        with paths[number].open("rb") as file:
            header = file.read(HEADER.size)
        try:
            first = _unpack_header(paths[number], header, record)
        except JournalCorrupt:
            continue  # Whoever reads on from an earlier segment comes upon it.
        if first <= record:
            return number, first
    return 0, 0


def with_checkpoint(folder: Path, error: JournalCorrupt) -> JournalCorrupt:
    """The same error with the last good checkpoint before it, and the sentence that offers it."""
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
        else "start the run anew, for no checkpoint was made before it"
    )
    return JournalCorrupt(
        f"{error}; what came after it cannot be trusted, so nothing was changed; "
        f"put the file back from a copy, or {offer}.",
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
        raise InputError(
            f"the journal {path} has schema {schema}, and this version of spotlight reads {SCHEMA}; "
            "their records differ; use the version that wrote it."
        )
    return int(first_seq)
