"""The console of all tables and lines: what it prints is text, never markup, and cannot control the terminal."""

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from spotlight.surface.plain_text import plain_lines


class PlainConsole(Console):
    """Shows strings as they are; styles come from `Text` alone."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain_lines(text), **options)


def terminal(stderr: bool = False) -> PlainConsole:
    """The console of standard output or standard error, as these are now."""
    file = sys.stderr if stderr else sys.stdout
    return PlainConsole(file=file, markup=False, emoji=False, highlight=False)
