"""Lines about the next commands, on standard error: standard output stays data."""

import shlex
import sys

from spotlight.surface.plain_text import plain


def hint(verb: str, subject: object, *more: str, why: str = "") -> None:
    """Print a command to go on with: `next: spotlight status RUN     # why`."""
    command = " ".join(["spotlight", verb, shlex.quote(plain(subject)), *more])
    print(f"next: {command}" + (f"     # {why}" if why else ""), file=sys.stderr)
