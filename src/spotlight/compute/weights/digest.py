"""Two names for a set of weights: a digest that anyone can check, and a fingerprint that costs next to nothing.

The digest is a hash over sorted (name, dtype, shape, bytes) and travels with files. Hashing a large adapter takes
seconds, and every optimizer step is recorded; so steps are told apart by fingerprints, which are summed up where the
weights are. A fingerprint is no proof against an adversary, but any single bit that differs changes it
(tests/unit/test_weight_files.py).
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Numbers that are summed up at a time: what their 64-bit copies need stays small beside the weights."""
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
    for name in sorted(weights):
        tensor = weights[name].detach()
        hasher.update(_label(name, tensor))
        hasher.update((int(_weighted_sum(tensor)) % SHIFT).to_bytes(8, "little"))
    return hasher.hexdigest()


def _label(name: str, tensor: Tensor) -> bytes:
    # Doubled in names, so that the separator ends them and no two mappings are hashed from the same bytes.
    escaped = name.replace("|", "||")
    return f"{escaped}|{tensor.dtype}|{tuple(tensor.shape)}|".encode()


def _weighted_sum(tensor: Tensor) -> Tensor:
    """Of the numbers as integers, each times an odd factor of its place, modulo 2^64.

    An odd factor has an inverse, so no change of one number is lost; and integer sums do not depend on their order.
    """
    words = tensor.contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, words.numel(), CHUNK):
        part = words[start : start + CHUNK].to(torch.int64)
        places = torch.arange(start, start + part.numel(), dtype=torch.int64, device=tensor.device)
        total += (part * (places * (MIX - SHIFT) | 1)).sum()
    return total


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
