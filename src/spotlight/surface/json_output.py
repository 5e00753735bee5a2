"""Output of `--json`: one line of JSON on standard output, valid whatever the texts and numbers in it are.

Characters that control a terminal are escaped, numbers that JSON does not have are null.
"""

import sys
from pathlib import Path
from typing import TextIO

from spotlight.surface.plain_text import HOSTILE


def json_line(value: object) -> str:
    """The value as one line: structs, dataclasses, dictionaries, lists, paths."""
    # Not above: verbs import this before their arguments are parsed.
    import msgspec

    text = msgspec.json.encode(value, enc_hook=_plain).decode()
    # Outside of strings JSON of one line has none of these characters.
    return HOSTILE.sub(lambda found: _escaped(found.group()), text)


def print_json(value: object, out: TextIO | None = None) -> None:
    print(json_line(value), file=out or sys.stdout, flush=True)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
