"""References to bytes that travel apart from messages: tensors of finished samples, flights, pictures.

The bytes lie in the store of a reserved node (`node/blob_store.py`). Messages and the journal carry references only.

Invariant: a reference is made after its bytes are stored, so the bytes can be read until they are released;
a sample is accepted, and a commit counts, only with a reference (tests/unit/test_blob_store.py, storms).
"""

import hashlib
from enum import StrEnum

import msgspec


class BlobKind(StrEnum):
    """Content of a blob, and the folder that it lies in."""

    PAYLOAD = "payloads"
    """Tensors of a finished rollout, which training reads."""
    FLIGHT = "flights"
    """A part of a sample in mid-denoising."""
    PICTURE = "images"
    """A PNG of an evaluation."""


class BlobRef(msgspec.Struct, frozen=True, gc=False):
    """A file of the store, or a part of one."""

    kind: BlobKind
    path: str
    """Path in the store."""
    digest: str
    """Seal of the tensors, or hash of the picture."""
    size: int
    offset: int = 0
    number: int = 0
    """Flights share files: this is the part's number in its file, from 1."""
    is_last: bool = False
    """Whether no part follows in its file."""


class BlobSource(msgspec.Struct, frozen=True):
    """A node that serves its copies of weights to others."""

    address: str
    """host:port"""
    fingerprint: str
    """Of its certificate."""


def content_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
