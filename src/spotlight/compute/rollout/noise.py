"""Noise tensors from keys: drawn in fp32 on the host, then copied, so that every device has the same bits.

Device generators differ in their last bits and depend on the batch layout; host noise does neither (golden digest in
tests/unit/test_noise.py).
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from spotlight.core.rng import Purpose, generator, noise_key
from spotlight.core.types import Sample

DRAWS_PER_THREAD = 128
"""Least number of draws for which starting a thread saves time."""
MOST_THREADS = 4


def normals(keys: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Draw one standard normal fp32 tensor per key, each a pure function of key and shape.

    Several threads draw large batches, because NumPy draws without the GIL.
    """
    drawn = np.empty((len(keys), *shape), dtype=np.float32)

    def fill(rows: range) -> None:
        for row in rows:
            generator(keys[row]).standard_normal(dtype=np.float32, out=drawn[row])

    threads = min(MOST_THREADS, os.cpu_count() or 1, len(keys) // DRAWS_PER_THREAD)
    if threads < 2:
        fill(range(len(keys)))
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, (range(first, len(keys), threads) for first in range(threads))))
    return torch.from_numpy(drawn)


def initial_noise(run_seed: int, samples: Sequence[Sample], shape: Sequence[int]) -> Tensor:
    """x_T of each sample; samples of a prompt with the same start share it."""
    keys = [noise_key(run_seed, s.prompt, s.start, 0, Purpose.INITIAL) for s in samples]
    return normals(keys, shape)


def step_noise(run_seed: int, samples: Sequence[Sample], step: int, shape: Sequence[int]) -> Tensor:
    """The SDE noise of each sample at one denoising step."""
    keys = [noise_key(run_seed, s.prompt, s.seed, step, Purpose.SDE) for s in samples]
    return normals(keys, shape)
