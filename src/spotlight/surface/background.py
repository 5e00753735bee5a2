"""Runs as processes of their own, which go on when the process that started them ends.

    starter --spawns--> `spotlight train ... --detached PIPE` --all checks; the run lives--> one line in the pipe
                            |                                                               `--> later output goes to
                            `-- refused: the sentence and the exit code                          logs/controller.log
                                become the starter's error

The child has a session of its own, so that signals to the starter's terminal or notebook do not reach it.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from spotlight.core.errors import NothingToDo, SpotlightError, error_of
from spotlight.folder import RunFolder
from spotlight.surface.plain_text import plain_lines

CONTROLLER_LOG = "controller.log"
PREFIX = "spotlight: "
"""Begins the sentence of a refusal on standard error."""


class Detached(msgspec.Struct, frozen=True):
    """The line with which a detached run reports that it has begun."""

    run: str
    """Its folder."""
    pid: int


class BackgroundRun(msgspec.Struct, frozen=True):
    """A run that has begun, and its controller."""

    folder: RunFolder
    process: "subprocess.Popen[str]"


def start(arguments: Sequence[str]) -> BackgroundRun:
    """Start `spotlight ARGUMENTS` and return when its run has begun; remarks of its checks go to standard error.

    Raises the error that the command line would report if the run is refused.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-P", "-m", "spotlight.surface.cli.main", *arguments, "--detached", str(writer)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(writer,),
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    os.close(writer)
    assert process.stdout is not None
    remarks: list[str] = []
    relaying = threading.Thread(target=_relay, args=(process.stdout, remarks, sys.stderr), daemon=True)
    relaying.start()
    with open(reader, "rb") as pipe:
        line = pipe.readline()
    if line:
        began = msgspec.json.decode(line, type=Detached)
        return BackgroundRun(RunFolder(Path(began.run)), process)
    code = process.wait()
    relaying.join()
    raise _refusal(code, remarks)


def _relay(stream: IO[str], remarks: list[str], to: IO[str]) -> None:
    with stream:
        for line in stream:
            remarks.append(line)
            if not line.startswith(PREFIX):
                with suppress(ValueError, OSError):
                    # The notebook may have closed its stream.
                    to.write(plain_lines(line))


def _refusal(code: int, remarks: list[str]) -> SpotlightError:
    """The command's error, from what it wrote."""
    said = next((line for line in reversed(remarks) if line.startswith(PREFIX)), None)
    sentence = (said or "".join(remarks[-20:]) or f"the run's process ended with code {code}").removeprefix(PREFIX)
    return NothingToDo(sentence.strip()) if code == NothingToDo.exit_code else error_of(code, sentence.strip())


async def detach(folder: RunFolder, pipe: int) -> None:
    """In the child: report the begin of the run, then write all output to a log in its folder."""
    logs = folder.path / "logs"
    logs.mkdir(exist_ok=True)
    with suppress(BrokenPipeError):
        # The starter may be gone already.
        os.write(pipe, msgspec.json.encode(Detached(str(folder.path), os.getpid())) + b"\n")
    os.close(pipe)
    handle = os.open(logs / CONTROLLER_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)
