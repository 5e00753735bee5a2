"""Base class of all messages; in its own file because several files define messages."""

import msgspec


class Message(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base of all messages; `tag` is the class name. No message refers to itself, so `gc=False` is safe."""
