"""Hashes in place of latents, rewards, weights and optimizer steps.

A latent hashes the sample, the weights and the steps taken. Theta hashes the previous theta and every tensor and
advantage of the update, in order. So two runs end with the same theta only if they trained on the same samples in the
same order, once (tests/storm/test_storm.py).
"""

import hashlib
import random
import struct
import zlib

import msgspec

from spotlight.core.types import Sample
from spotlight.core.work import RequestId

SCORER = "sim-1"
_HEADER = struct.Struct("<II")
"""Size and seal of a part."""


def mark(*parts: object) -> str:
    """16 hex digits: a hash of the parts."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def first_latent(sample: Sample) -> str:
    return mark("latent", sample.prompt, sample.seed, sample.start, repr(sample.sampling))


def next_latent(latent: str, step: int, weights_digest: str) -> str:
    return mark(latent, step, weights_digest)


def latent_at(sample: Sample, step: int, weights_digest: str) -> str:
    """The latent after `step` steps, on any worker."""
    latent = first_latent(sample)
    for taken in range(step):
        latent = next_latent(latent, taken, weights_digest)
    return latent


class FlightPart(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one commit; each builds on the one before, as if every step recorded tensors."""

    request: RequestId
    attempt: int
    step: int
    since: int = 0
    base: int = 0
    """Seal of the part of step `since`."""
    digest: str
    latent: str

    def to_bytes(self) -> bytes:
        content = msgspec.msgpack.encode(self)
        return _HEADER.pack(len(content), zlib.crc32(content)) + content


def part_seal(data: bytes) -> int:
    """The seal of the first part."""
    return int(_HEADER.unpack_from(data)[1])


def header_of(data: bytes) -> FlightPart | None:
    """What the first part says about itself, whether or not its tensors are damaged; None if it cannot be read."""
    try:
        return msgspec.msgpack.decode(data[_HEADER.size :], type=FlightPart)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_flight(data: bytes) -> list[FlightPart]:
    """The parts of a flight, in order; raises ValueError if one is damaged."""
    parts, at = [], 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise ValueError("the flight is cut short")
        size, seal = _HEADER.unpack_from(data, at)
        at += _HEADER.size + size
        content = data[at - size : at]
        if zlib.crc32(content) != seal:
            raise ValueError("the flight is damaged")
        parts.append(msgspec.msgpack.decode(content, type=FlightPart))
    return parts


def reward_of(sample: Sample, weights_digest: str) -> float:
    """A reward in [0, 1) with few distinct values, so that flat groups occur."""
    return int(mark("reward", sample.prompt, sample.seed, repr(sample.sampling), weights_digest)[:4], 16) % 64 / 64


class Streams:
    """Random generators by name; a new name does not change the others."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[str, random.Random] = {}

    def __getitem__(self, name: str) -> random.Random:
        if name not in self._streams:
            self._streams[name] = random.Random(f"{self._seed}/{name}")
        return self._streams[name]
