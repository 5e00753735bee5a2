"""Noise tensors from keys: drawn in fp32 on the host, then copied, so that every device sees the same bits.

Device generators differ from one another in the last bits and depend on batch layout; these do neither
(golden digest in tests/unit/test_noise.py).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spotlight.core.rng import Purpose, generator, noise_key
from spotlight.core.types import Sample


def normal(key: int, shape: Sequence[int]) -> Tensor:
    """Standard normal fp32 on the host, a pure function of key and shape."""
    return torch.from_numpy(generator(key).standard_normal(tuple(shape), dtype=np.float32))


def initial_noise(run_seed: int, samples: Sequence[Sample], shape: Sequence[int]) -> Tensor:
    """x_T of each sample; samples of a prompt with the same start share it."""
    keys = [noise_key(run_seed, s.prompt, s.start, 0, Purpose.INITIAL) for s in samples]
    return torch.stack([normal(key, shape) for key in keys])


def step_noise(run_seed: int, samples: Sequence[Sample], step: int, shape: Sequence[int]) -> Tensor:
    """The SDE noise of each sample at one denoising step."""
    keys = [noise_key(run_seed, s.prompt, s.seed, step, Purpose.SDE) for s in samples]
    return torch.stack([normal(key, shape) for key in keys])
