"""Hashes in place of latents, rewards, weights and optimizer steps.

A latent hashes the sample, the weights and the steps taken. Theta hashes the previous theta and every tensor and
advantage of the update, in order. So two runs end with the same theta only if they trained on the same samples in the
same order, once (tests/storm/test_storm.py).
"""

import hashlib
import random
import struct

import msgspec

from spotlight.core.types import Sample
from spotlight.core.work import RequestId

SCORER = "sim-1"
_SIZE = struct.Struct("<I")


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
    step: int
    since: int = 0
    digest: str
    latent: str

    def to_bytes(self) -> bytes:
        content = msgspec.msgpack.encode(self)
        return _SIZE.pack(len(content)) + content


def read_flight(data: bytes) -> list[FlightPart]:
    """The parts of a flight, in order."""
    parts, at = [], 0
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size + size
        parts.append(msgspec.msgpack.decode(data[at - size : at], type=FlightPart))
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
