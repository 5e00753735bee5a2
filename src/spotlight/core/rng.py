"""Randomness comes from identity: 128-bit keys for a counter-based generator.

A key is a hash of what is drawn and for whom: never of rank, worker, batch position or wall clock. The tensors are
drawn from these keys in `compute/rollout/noise.py`; decisions (window, order) are drawn here.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


class Purpose(StrEnum):
    """What a number is drawn for; two purposes never share a stream."""

    INITIAL = "initial"
    SDE = "sde"
    TRAIN_NOISE = "train-noise"
    TRAIN_TIMESTEP = "train-timestep"
    WINDOW = "window"
    ORDER = "order"
    DATA = "data"


def derive_key(purpose: Purpose, run_seed: int, *parts: str | int) -> int:
    """128-bit key of (purpose, run seed, parts); parts are length-prefixed, so no two tuples collide."""
    if not parts:
        return int.from_bytes(_begun(purpose, run_seed).digest(), "little")
    hasher = _begun(purpose, run_seed, *parts[:-1]).copy()
    hasher.update(_told(parts[-1]))
    return int.from_bytes(hasher.digest(), "little")


@lru_cache(maxsize=1 << 12, typed=True)
def _begun(purpose: Purpose, *parts: str | int) -> hashlib.blake2b:
    """All that keys of one prompt or sample have in common, hashed once."""
    told = b"".join([_told(part) for part in (purpose.value, *parts)])
    return hashlib.blake2b(told, digest_size=16, person=b"spotlight-rng-v1")


def _told(part: str | int) -> bytes:
    told = f"i{part}".encode() if isinstance(part, int) else b"s" + part.encode()
    return len(told).to_bytes(4, "little") + told


def noise_key(run_seed: int, prompt: str, seed: int, step: int, purpose: Purpose) -> int:
    """Key of one noise tensor of one sample at one step."""
    return derive_key(purpose, run_seed, prompt, seed, step)


def generator(key: int) -> np.random.Generator:
    """The counter-based generator (Philox 4x64) that belongs to a key."""
    return np.random.Generator(np.random.Philox(key=key))


def shuffled(items: Sequence[Item], key: int) -> list[Item]:
    """The items in the order that the key decides."""
    return [items[int(i)] for i in generator(key).permutation(len(items))]
