"""Two names for a set of weights: a digest that anyone can check, and a fingerprint that costs next to nothing.

The digest is a hash over sorted (name, dtype, shape, bytes) and travels with files that people hand on. Hashing a large
adapter takes seconds, and a run names its weights at every step, publication and load; so within a run they are told
apart by fingerprints, which are summed up where the weights are. A fingerprint is no proof against an adversary, but
any single bit that differs changes it (tests/unit/test_weight_files.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CHUNK, HOST_CHUNK = 1 << 24, 1 << 16
"""Numbers that are summed up at a time: their 64-bit copies stay small beside the weights of a device, and in the
caches of a processor."""
THREADS, WORTH_THREADS = 8, 64 << 20
"""For weights in host memory of at least so many bytes."""
MIX, SHIFT = 0x9E3779B97F4A7C15, 1 << 64
"""An odd constant without pattern (2^64 over the golden ratio)."""


def digest(weights: Mapping[str, Tensor]) -> str:
    """Hex digest; equal exactly when names, types, shapes and every bit are equal."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        hasher.update(_label(name, tensor))
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Hex name of weights on any device; the same bits give the same name whatever computes it."""
    hasher = hashlib.blake2b(digest_size=16)
    names = sorted(weights)
    tensors = [weights[name].detach() for name in names]
    for name, tensor, total in zip(names, tensors, _totals(tensors), strict=True):
        hasher.update(_label(name, tensor))
        hasher.update((total % SHIFT).to_bytes(8, "little"))
    return hasher.hexdigest()


def _totals(tensors: Sequence[Tensor]) -> list[int]:
    in_host_bytes = sum(tensor.nbytes for tensor in tensors if tensor.device.type == "cpu")
    factors = {device: _factors(device, tensors) for device in {tensor.device for tensor in tensors}}
    if in_host_bytes < WORTH_THREADS:
        sums = [_weighted_sum(tensor, factors[tensor.device]) for tensor in tensors]
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            sums = list(threads.map(lambda tensor: _weighted_sum(tensor, factors[tensor.device]), tensors))
    # Read back at once: a device is waited for at every number that is asked of it.
    return torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []


def _factors(device: torch.device, tensors: Sequence[Tensor]) -> Tensor:
    """Of the first places, as many as are summed up at a time; made once, for a small tensor costs what it starts."""
    longest = max(tensor.numel() for tensor in tensors if tensor.device == device)
    room = HOST_CHUNK if device.type == "cpu" else CHUNK
    return torch.arange(max(1, min(longest, room)), dtype=torch.int64, device=device) * (MIX - SHIFT) | 1


def _label(name: str, tensor: Tensor) -> bytes:
    # Doubled in names, so that the separator ends them and no two mappings are hashed from the same bytes.
    escaped = name.replace("|", "||")
    return f"{escaped}|{tensor.dtype}|{tuple(tensor.shape)}|".encode()


def _weighted_sum(tensor: Tensor, factors: Tensor) -> Tensor:
    """Of the numbers as integers, each times an odd factor of its place, modulo 2^64.

    An odd factor has an inverse, so no change of one number is lost; and integer sums do not depend on their order.
    """
    words = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    room = len(factors)
    total = (words[:room] * factors[: words.numel()]).sum()
    for start in range(room, words.numel(), room):
        part = words[start : start + room]
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=tensor.device)
        total += (part * places.mul_(MIX - SHIFT).bitwise_or_(1)).sum()
    return total


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
