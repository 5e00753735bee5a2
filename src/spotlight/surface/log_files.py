"""The logs of a run's processes: one file each in RUN/logs, read at the end or followed as they grow."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.core.errors import InputError, suggestion
from spotlight.surface.plain_text import plain_lines

BLOCK = 1 << 16
SUFFIX = ".log"


class LogLine(msgspec.Struct, frozen=True):
    """One line of a process."""

    process: str
    """Name of its file, without the suffix: controller, nursery, NODE (its agent), NODE-SLOT.LIFE (a worker)."""
    line: str


class LogFiles:
    """The files of a run whose names contain one of `names`; all without any."""

    def __init__(self, run: Path, names: tuple[str, ...] = ()) -> None:
        self._folder = run / "logs"
        # A worker is spot-1.3/0.2, and its file spot-1.3-0.2.log.
        self._names = tuple(name.replace("/", "-") for name in names)
        self._offsets: dict[Path, int] = {}

    def check(self) -> None:
        """Refuse names that no file has."""
        known = [path.stem for path in self._paths(all_of_them=True)]
        for name in self._names:
            if not any(name in each for each in known):
                hint = suggestion(name, known) if known else "there are no logs yet."
                raise InputError(f"no process of the run has '{name}' in its name: {hint}")

    def last(self, lines: int) -> Iterator[LogLine]:
        """The last lines of every file; `new` goes on from there."""
        for path in self._paths():
            try:
                text, self._offsets[path] = _end_of(path, lines)
            except FileNotFoundError:
                continue
            for line in text:
                yield LogLine(path.stem, line)

    def new(self) -> Iterator[LogLine]:
        """Whole lines that were added since, also of files that are new."""
        for path in self._paths():
            offset = self._offsets.get(path, 0)
            try:
                data = _from(path, offset)
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            for line in whole.splitlines():
                yield LogLine(path.stem, _text(line))

    def _paths(self, all_of_them: bool = False) -> list[Path]:
        """Plain files, oldest first; a link may lead anywhere."""
        chosen = [
            path
            for path in self._folder.glob(f"*{SUFFIX}")
            if all_of_them or not self._names or any(name in path.stem for name in self._names)
        ]
        found = [(changed, path.name, path) for path in chosen if (changed := _changed_at(path)) is not None]
        return [path for _, _, path in sorted(found)]


def _changed_at(path: Path) -> float | None:
    """When a plain file has last changed; None for anything else, also for a file that was deleted since."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) else None


def _end_of(path: Path, lines: int) -> tuple[list[str], int]:
    """The last whole lines of a file, and the offset after them."""
    with path.open("rb") as file:
        end = start = file.seek(0, os.SEEK_END)
        data = b""
        while start > 0 and data.count(b"\n") <= lines:
            start = max(0, start - BLOCK)
            file.seek(start)
            data = file.read(end - start)
    whole = data[: data.rfind(b"\n") + 1]
    found = whole.splitlines()[-lines:] if lines else []
    return [_text(line) for line in found], end - len(data) + len(whole)


def _from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def _text(line: bytes) -> str:
    return plain_lines(line.decode(errors="replace"))
