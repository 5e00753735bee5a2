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
    """Flights and samples may share a file: this is the blob's number in it, from 1; 0: it has a file of its own."""
    is_last: bool = False
    """Whether no blob follows in its file."""

    @property
    def place(self) -> str:
        """Its path, in a shared file with offset and size: `payloads/000003/spot-1.1-0.2.0@4096+1024`."""
        return f"{self.path}@{self.offset}+{self.size}" if self.number else self.path


class BlobSource(msgspec.Struct, frozen=True):
    """A node that serves its copies of weights to others."""

    address: str
    """host:port"""
    fingerprint: str
    """Of its certificate."""


def writer_files(writer: str, iteration: int | None = None) -> str:
    """Beginning of the paths of the shared files of a worker, or of all of a node: flights, or an iteration's samples.

    A worker's id begins with its node's: node spot-1.1 has flights/spot-1.1-, worker spot-1.1/0.2 flights/spot-1.1-0.2.
    """
    node, _, life = writer.partition("/")
    folder = BlobKind.FLIGHT.value if iteration is None else f"{BlobKind.PAYLOAD.value}/{iteration:06d}"
    return f"{folder}/{node}-{life}{'.' if life else ''}"


def content_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
