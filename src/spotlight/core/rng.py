"""Randomness comes from identity: 128-bit keys for a counter-based generator.

A key is a hash of what is drawn and for whom: never of rank, worker, batch position or wall clock. The tensors are
drawn from these keys in `compute/rollout/noise.py`; decisions (window, order) are drawn here.
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum
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
    content = b""
    for part in (purpose.value, run_seed, *parts):
        told = (f"i{part}" if isinstance(part, int) else f"s{part}").encode()
        content += len(told).to_bytes(4, "little") + told
    return int.from_bytes(hashlib.blake2b(content, digest_size=16, person=b"spotlight-rng-v1").digest(), "little")


def noise_key(run_seed: int, prompt: str, seed: int, step: int, purpose: Purpose) -> int:
    """Key of one noise tensor of one sample at one step."""
    return derive_key(purpose, run_seed, prompt, seed, step)


def generator(key: int) -> np.random.Generator:
    """The counter-based generator (Philox 4x64) that belongs to a key."""
    return np.random.Generator(np.random.Philox(key=key))


def shuffled(items: Sequence[Item], key: int) -> list[Item]:
    """The items in the order that the key decides."""
    return [items[int(i)] for i in generator(key).permutation(len(items))]
