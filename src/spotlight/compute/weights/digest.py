"""The digest of a set of weights: a hash over sorted (name, dtype, shape, bytes)."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest(weights: Mapping[str, Tensor]) -> str:
    """Hex digest; equal exactly when names, types, shapes and every bit are equal."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        # Doubled in names, so that the separator ends them and no two mappings are hashed from the same bytes.
        escaped = name.replace("|", "||")
        hasher.update(f"{escaped}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
