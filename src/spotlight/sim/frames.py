"""What crosses between simulated machines and the controller: bytes where somebody looks, else the messages themselves.

As bytes, whatever a schema cannot carry shows, and nobody shares an object with anybody; that is for storms and
stories. Messages are frozen, so a long simulation may hand them over as they are, which costs nothing.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from spotlight.core import messages as m

Frame: TypeAlias = m.Envelope | None
"""None stands for the end of a connection."""
Carry: TypeAlias = Callable[[m.Envelope], m.Envelope]
HANG_UP: Frame = None


def as_bytes() -> Carry:
    """As on a socket: what arrives was read from what was written."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(m.Envelope).decode
    return lambda envelope: decode(encode(envelope))
