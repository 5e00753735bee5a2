"""Texts of others in a terminal: prompts, run names and errors show as they are and cannot control it.

Escape sequences, other control characters and marks that reorder text are replaced by visible escapes (`\\x1b`), so
that a prompt can neither clear the screen, nor set its title, nor show one word as another.
"""

import re

LONGEST = 2000
"""Characters of one text; the rest is cut."""
HOSTILE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: escape sequences begin with these
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks
    "\u2028\u2029"  # line separators
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible tags and annotations
    "\ud800-\udfff"  # halves of characters, which no terminal can encode
    "]"
)


def plain(text: object, longest: int = LONGEST) -> str:
    """The text on one line, without control characters, at most `longest` characters."""
    whole = str(text)
    shown = whole if len(whole) <= longest else f"{whole[: longest - 1]}…"
    return HOSTILE.sub(_escaped, shown)


def plain_lines(text: object) -> str:
    """As `plain`, but line ends and tabs stay, and nothing is cut: for a line of a log."""
    return HOSTILE.sub(lambda found: found.group() if found.group() in "\n\t" else _escaped(found), str(text))


def _escaped(found: "re.Match[str]") -> str:
    code = ord(found.group())
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(found.group())
    return known or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
