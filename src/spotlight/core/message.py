"""The base of everything that crosses a wire; apart, so that families of messages can have files of their own."""

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all messages; `tag` is the class name."""
