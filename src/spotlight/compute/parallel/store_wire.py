"""What a worker and the group store of its agent say to each other while a group forms; free of torch.

    | length: 4 bytes, little-endian | msgpack of one request or one answer |

A request is answered by exactly one answer, in order. Every request carries the token of its group, so that a zombie of
an old epoch is refused by the store itself (tests/unit/test_parallel_store.py).
"""

import struct
from typing import TypeAlias

import msgspec

from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import SpotlightError

HEADER = struct.Struct("<I")
FRAME_LIMIT = 64 << 10
"""Bytes of one frame; gloo's addresses have 200 and NCCL's identity 128, so that more is a defect."""


class Set(msgspec.Struct, frozen=True, tag=True, array_like=True):
    token: GroupToken
    key: str
    value: bytes


class Get(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Waits at the store until the key is there, at most this long; 0 only looks."""

    token: GroupToken
    key: str
    timeout_s: float


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    token: GroupToken
    key: str
    amount: int


class Value(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to all three: what the key holds now."""

    value: bytes


class Late(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The key did not come in time."""


class Refusal(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The token is not forming or serving, or a limit is reached."""

    problem: str


Request: TypeAlias = Set | Get | Add
Answer: TypeAlias = Value | Late | Refusal

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


class StoreError(SpotlightError):
    """The group store did not do what was asked; whoever forms a group gives it up."""


class StoreRefused(StoreError):
    """The store no longer knows the token: this group is of the past."""


class StoreLate(StoreError):
    """A member did not write what the others wait for."""


def frame(message: Request | Answer) -> bytes:
    body = _ENCODER.encode(message)
    return HEADER.pack(checked_length(len(body))) + body


def length_of(header: bytes) -> int:
    (length,) = HEADER.unpack(header)
    return checked_length(length)


def checked_length(length: int) -> int:
    if length > FRAME_LIMIT:
        raise StoreError(
            f"a frame of {length} bytes is over the group store's limit of {FRAME_LIMIT}, because a group exchanges "
            "addresses only; close the connection."
        )
    return int(length)


def request_of(body: bytes) -> Request:
    try:
        return _REQUESTS.decode(body)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{len(body)} bytes are no request to a group store ({error}); close the connection."
        ) from error


def answer_of(body: bytes) -> Answer:
    try:
        return _ANSWERS.decode(body)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{len(body)} bytes are no answer of a group store ({error}); close the connection."
        ) from error
