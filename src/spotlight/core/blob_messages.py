"""Messages between an agent and a blob server (`node/blob_server.py`); part of the union of all messages.

    agent -> server   OpenBlobs, then any number of PutBlob, AppendBlob, ReadBlob, ReadFile, ListFiles
    server -> agent   BlobsOpen or Rejected; then one reply per request, in order: BlobStored, BlobBytes, FilesListed,
                      BlobRefused

Bytes travel as the frame's blob, and their CRC-32 in the message; the receiver compares them.
"""

from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.message import Message
from spotlight.core.types import NodeId


class OpenBlobs(Message, frozen=True, kw_only=True):
    """First message of a connection."""

    schema: int
    code: str
    node: NodeId
    token: str


class BlobsOpen(Message, frozen=True, kw_only=True):
    """The server takes requests."""


class PutBlob(Message, frozen=True, kw_only=True):
    """Store these bytes under a name."""

    kind: BlobKind
    name: str
    crc: int


class AppendBlob(Message, frozen=True, kw_only=True):
    """Store a part of a flight, once: a request that is repeated has the same id."""

    id: str
    crc: int


class ReadBlob(Message, frozen=True, kw_only=True):
    ref: BlobRef


class ReadFile(Message, frozen=True, kw_only=True):
    """Read a part of a file that other machines may read; the path is relative to the run's folder."""

    path: str
    offset: int
    size: int


class ListFiles(Message, frozen=True, kw_only=True):
    """List a file, or all files of a folder, that other machines may read."""

    path: str


class FilesListed(Message, frozen=True, kw_only=True):
    paths: tuple[str, ...]


class BlobStored(Message, frozen=True, kw_only=True):
    ref: BlobRef


class BlobBytes(Message, frozen=True, kw_only=True):
    crc: int
    total: int
    """Size of the whole file or blob."""


class BlobRefused(Message, frozen=True, kw_only=True):
    problem: str
    is_full: bool = False
    """The disk takes no more: the run must stop."""
