"""The base of everything that crosses a wire; apart, so that families of messages can have files of their own."""

import msgspec


class Message(
    msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Base of all messages; `tag` is the class name. None leads back to itself, so none is garbage to look for."""
