"""Transport between simulated machines and the controller: encoded bytes, or the message objects themselves.

Storms and stories encode, so that a value that the schema cannot carry fails and no object is shared. Long simulations
pass the frozen messages on, at no cost.
"""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from spotlight.core import messages as m

Frame: TypeAlias = m.Envelope | None
"""None is the end of a connection."""
Carry: TypeAlias = Callable[[m.Envelope], m.Envelope]
HANG_UP: Frame = None


def as_bytes() -> Carry:
    """Encode and decode each message, as on a socket."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(m.Envelope).decode
    return lambda envelope: decode(encode(envelope))
