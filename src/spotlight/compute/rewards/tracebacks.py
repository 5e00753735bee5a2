"""Where a user's reward failed: the traceback of its process goes to a file that the error names."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import spotlight
from spotlight.core.errors import RewardError

FRAME = re.compile(r'File "([^"<>]+)", line (\d+)')
OURS = (str(Path(spotlight.__file__).parent), str(Path(os.__file__).parent / "concurrent"))
"""Frames of every call in a reward process."""
IMPORTING, LIBRARIES = (f"{os.sep}{folder}{os.sep}" for folder in ("importlib", "site-packages"))


@contextmanager
def named_tracebacks() -> Iterator[None]:
    """A RewardError that comes from the reward's own code says at which line, and which file has the traceback."""
    try:
        yield
    except RewardError as error:
        traceback = _remote_traceback(error)
        place = _last_place(traceback)
        if place is None:
            raise
        log = _written(traceback)
        raise type(error)(f"{str(error).rstrip('.')}, at {place}; the whole traceback is in {log}.") from error


def _remote_traceback(error: BaseException | None) -> str:
    """As text: concurrent.futures attaches it as the cause of what it raises here."""
    while error is not None:
        if type(error).__name__ == "_RemoteTraceback":
            return str(error)
        error = error.__cause__
    return ""


def _last_place(traceback: str) -> str | None:
    """`my_reward.py line 7`: the innermost frame of the reward's code; None where the error is our own."""
    frames = [
        frame for frame in FRAME.findall(traceback) if not frame[0].startswith(OURS) and IMPORTING not in frame[0]
    ]
    # Where a library raised, the line that called it says more.
    own = [frame for frame in frames if LIBRARIES not in frame[0]] or frames
    return f"{own[-1][0]} line {own[-1][1]}" if own else None


def _written(traceback: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="spotlight-reward-", suffix=".log")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(traceback)
    return Path(name)
