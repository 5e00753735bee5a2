"""What crosses between simulated machines and the controller: bytes where somebody looks, else the messages themselves.

As bytes, whatever a schema cannot carry shows, and nobody shares an object with anybody; that is for storms and
stories. Messages are frozen, so a long simulation may hand them over as they are, which costs nothing.
"""

from typing import Protocol, TypeAlias

import msgspec

from spotlight.core import messages as m

Frame: TypeAlias = bytes | m.Envelope
HANG_UP = b""
"""The frame that stands for the end of a connection."""


class Frames(Protocol):
    def pack(self, envelope: m.Envelope) -> Frame: ...

    def unpack(self, frame: Frame) -> m.Envelope: ...


class Packed:
    """As on a socket."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(m.Envelope).decode

    def pack(self, envelope: m.Envelope) -> Frame:
        return self._encode(envelope)

    def unpack(self, frame: Frame) -> m.Envelope:
        assert isinstance(frame, bytes)
        return self._decode(frame)


class Handed:
    """As they are."""

    def pack(self, envelope: m.Envelope) -> Frame:
        return envelope

    def unpack(self, frame: Frame) -> m.Envelope:
        assert isinstance(frame, m.Envelope)
        return frame
