"""Two identities of a set of weights: a cryptographic digest, and a fingerprint that costs almost nothing.

The digest is a hash over sorted (name, dtype, shape, bytes) and is stored in files that leave the machine. Hashing a
large adapter takes seconds, and a run identifies its weights at every step, publication and load. Within a run,
fingerprints identify them; they are summed on the device of the weights. A fingerprint is no protection against an
adversary, but any single bit that differs changes it (tests/unit/test_weight_files.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

CHUNK, HOST_CHUNK = 1 << 24, 1 << 16
"""Numbers summed at a time: their 64-bit copies stay small beside the weights on a device, and fit the caches of a
CPU."""
THREADS, WORTH_THREADS = 8, 64 << 20
"""Thread count, and the least bytes of weights in host memory for which threads are used."""
MIX, SHIFT = 0x9E3779B97F4A7C15, 1 << 64
"""An odd constant without pattern (2^64 over the golden ratio)."""


def digest(weights: Mapping[str, Tensor]) -> str:
    """Return a hex digest; equal exactly when names, types, shapes and every bit are equal."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        hasher.update(_label(name, tensor))
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a hex fingerprint of weights on any device; equal bits give equal fingerprints on every device."""
    return fingerprint_of(weights, _totals([weights[name].detach() for name in sorted(weights)]))


def partial_totals(rows: Mapping[str, Tensor], starts: Mapping[str, int]) -> list[int]:
    """Sums of some numbers of each tensor, by sorted name; `starts` are their places in the whole tensors.

    The totals of all pieces add up to those of the whole tensors, modulo 2^64.
    """
    return [int(_sum_from(rows[name].detach(), starts[name])) % SHIFT for name in sorted(rows)]


def fingerprint_of(weights: Mapping[str, Tensor], totals: Sequence[int]) -> str:
    """Fingerprint of weights with these totals, by sorted name."""
    hasher = hashlib.blake2b(digest_size=16)
    for name, total in zip(sorted(weights), totals, strict=True):
        hasher.update(_label(name, weights[name]))
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
    # Read back at once: every single read would wait for the device.
    return torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []


def _factors(device: torch.device, tensors: Sequence[Tensor]) -> Tensor:
    """Factors of the first chunk of places; made once, because kernel launches dominate the cost of small tensors."""
    longest = max(tensor.numel() for tensor in tensors if tensor.device == device)
    room = HOST_CHUNK if device.type == "cpu" else CHUNK
    return torch.arange(max(1, min(longest, room)), dtype=torch.int64, device=device) * (MIX - SHIFT) | 1


def _label(name: str, tensor: Tensor) -> bytes:
    # The separator is doubled in names, so that no two mappings are hashed from the same bytes.
    escaped = name.replace("|", "||")
    return f"{escaped}|{tensor.dtype}|{tuple(tensor.shape)}|".encode()


def _weighted_sum(tensor: Tensor, factors: Tensor) -> Tensor:
    """Sum the numbers as integers, each times an odd factor of its place, modulo 2^64.

    An odd factor has an inverse, so no change of one number is lost. Integer sums do not depend on their order.
    """
    words = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    room = len(factors)
    total = (words[:room] * factors[: words.numel()]).sum()
    return total + _sum_from(words[room:], room)


def _sum_from(tensor: Tensor, first: int) -> Tensor:
    """The weighted sum of numbers whose places start at `first`."""
    words = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    room = HOST_CHUNK if tensor.device.type == "cpu" else CHUNK
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), room):
        part = words[start : start + room]
        places = torch.arange(first + start, first + start + part.numel(), dtype=torch.int64, device=tensor.device)
        total += (part * places.mul_(MIX - SHIFT).bitwise_or_(1)).sum()
    return total


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
