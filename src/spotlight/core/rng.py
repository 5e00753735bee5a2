"""Random numbers keyed by identity: 128-bit keys for a counter-based generator.

A key is a hash of the purpose and the identity (prompt, seed, step), never of rank, worker, batch position or wall
clock. `compute/rollout/noise.py` draws tensors from these keys; decisions (window, order) are drawn here.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


class Purpose(StrEnum):
    """Purpose of a random number; two purposes never share a stream."""

    INITIAL = "initial"
    SDE = "sde"
    TRAIN_NOISE = "train-noise"
    TRAIN_TIMESTEP = "train-timestep"
    WINDOW = "window"
    ORDER = "order"
    DATA = "data"
    RETRY = "retry"


def derive_key(purpose: Purpose, run_seed: int, *parts: str | int) -> int:
    """Return the 128-bit key of (purpose, run seed, parts); parts are length-prefixed, so no two tuples collide."""
    if not parts:
        return int.from_bytes(_prefix_hasher(purpose, run_seed).digest(), "little")
    hasher = _prefix_hasher(purpose, run_seed, *parts[:-1]).copy()
    hasher.update(_encoded(parts[-1]))
    return int.from_bytes(hasher.digest(), "little")


@lru_cache(maxsize=1 << 12, typed=True)
def _prefix_hasher(purpose: Purpose, *parts: str | int) -> hashlib.blake2b:
    """Hasher over the common prefix of the keys of one prompt or sample; cached."""
    prefix = b"".join([_encoded(part) for part in (purpose.value, *parts)])
    return hashlib.blake2b(prefix, digest_size=16, person=b"spotlight-rng-v1")


def _encoded(part: str | int) -> bytes:
    data = f"i{part}".encode() if isinstance(part, int) else b"s" + part.encode()
    return len(data).to_bytes(4, "little") + data


def noise_key(run_seed: int, prompt: str, seed: int, step: int, purpose: Purpose) -> int:
    """Key of one noise tensor of one sample at one step."""
    return derive_key(purpose, run_seed, prompt, seed, step)


def generator(key: int) -> np.random.Generator:
    """Return the counter-based generator (Philox 4x64) of a key."""
    return np.random.Generator(np.random.Philox(key=key))


def shuffled(items: Sequence[Item], key: int) -> list[Item]:
    """Return the items in the order given by the key."""
    return [items[int(i)] for i in generator(key).permutation(len(items))]
