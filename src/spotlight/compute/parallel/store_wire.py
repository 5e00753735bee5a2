"""Messages between a worker and the group store of its agent while a group forms; free of torch.

    | length: 4 bytes, little-endian | msgpack of one request or one answer |

Every request gets exactly one answer, in order. Every request has the token of its group, so that the store refuses
requests of an old epoch (tests/unit/test_parallel_store.py).
"""

import struct
from typing import TypeAlias

import msgspec

from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import SpotlightError

HEADER = struct.Struct("<I")
FRAME_LIMIT = 64 << 10
"""Most bytes of one frame; gloo's addresses have 200 and NCCL's identity 128, so a larger one is a defect."""


class Set(msgspec.Struct, frozen=True, tag=True, array_like=True):
    token: GroupToken
    key: str
    value: bytes


class Get(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Waits at the store until the key exists, at most `timeout_s`; 0 does not wait."""

    token: GroupToken
    key: str
    timeout_s: float


class Add(msgspec.Struct, frozen=True, tag=True, array_like=True):
    token: GroupToken
    key: str
    amount: int


class Value(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to all three requests: the key's current value."""

    value: bytes


class Late(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The key was not set in time."""


class Refusal(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The token is not forming or serving, or a limit is reached."""

    problem: str


Request: TypeAlias = Set | Get | Add
Answer: TypeAlias = Value | Late | Refusal

_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS = msgspec.msgpack.Decoder(Request)
_ANSWERS = msgspec.msgpack.Decoder(Answer)


class StoreError(SpotlightError):
    """A request to the group store failed; the caller gives up forming the group."""


class StoreRefused(StoreError):
    """The store refused the request: the token is of an old group, or a limit is reached."""


class StoreLate(StoreError):
    """A member did not write a key in time."""


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
            f"{len(body)} bytes are not a request to a group store ({error}); close the connection."
        ) from error


def answer_of(body: bytes) -> Answer:
    try:
        return _ANSWERS.decode(body)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{len(body)} bytes are not an answer of a group store ({error}); close the connection."
        ) from error
