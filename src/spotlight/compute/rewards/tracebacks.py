"""Tracebacks of failed rewards: the traceback of the reward process is written to a file that the error names."""

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
"""Folders of the frames that every call in a reward process has."""
IMPORTING, LIBRARIES = (f"{os.sep}{folder}{os.sep}" for folder in ("importlib", "site-packages"))


@contextmanager
def named_tracebacks() -> Iterator[None]:
    """Add the line and the traceback's file to a RewardError that the reward's own code caused."""
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
    """Text of the remote traceback, which concurrent.futures attaches as a cause; '' if there is none."""
    while error is not None:
        if type(error).__name__ == "_RemoteTraceback":
            return str(error)
        error = error.__cause__
    return ""


def _last_place(traceback: str) -> str | None:
    """`my_reward.py line 7`: the innermost frame of the reward's code; None if only Spotlight's code is involved."""
    frames = [
        frame for frame in FRAME.findall(traceback) if not frame[0].startswith(OURS) and IMPORTING not in frame[0]
    ]
    # If a library raised, the line that called it is more useful.
    own = [frame for frame in frames if LIBRARIES not in frame[0]] or frames
    return f"{own[-1][0]} line {own[-1][1]}" if own else None


def _written(traceback: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="spotlight-reward-", suffix=".log")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(traceback)
    return Path(name)
