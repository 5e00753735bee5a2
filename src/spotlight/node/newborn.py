"""The child's side of a fork in the nursery: the process becomes a worker, at once or after waiting as a spare."""

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TypeAlias

import msgspec

from spotlight.core.types import WorkerId
from spotlight.node.nursery_packets import PACKET_LIMIT, Spawn

Entry: TypeAlias = Callable[[WorkerId, socket.socket, bytes], None]
"""Function that a worker runs, called with its id, its end of the socket to the agent, and its launch bytes."""

WARM = b"warm"
"""A spare's packet to the nursery when its imports are done and its device is open."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class NewWorker:
    """Arguments of a forked child that becomes a worker."""

    request: Spawn
    sock: socket.socket


@dataclass(frozen=True)
class NewSpare:
    """Arguments of a forked child that becomes a spare."""

    line: socket.socket
    """Connection to the nursery, which sends the `Spawn`."""
    device: str
    log: str


Newborn: TypeAlias = NewWorker | NewSpare


@dataclass(frozen=True)
class Code:
    """Names of the code that children run; none of it is imported in the nursery if that is bare."""

    entry: str
    """`package.module:function` that a worker runs."""
    preload: Sequence[str] = ()
    """Modules that all workers need."""
    warm: str = ""
    """`package.module:function` that opens a device in a spare, called with the device's name; empty: none."""

    def load(self) -> Entry:
        """Import everything that a worker needs before its launch settings are known."""
        for module in self.preload:
            importlib.import_module(module)
        entry: Entry = _named(self.entry)
        return entry


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends; children do not inherit this."""
    _set_parent_death_signal(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that watches its owner's pipe and ends other processes first."""
    _set_parent_death_signal(0)


def survive_sigterm() -> None:
    """Survive SIGTERM, which Slurm sends to every process of a node before it kills them: samples are still committed.

    By a handler: programs that this process starts would inherit an ignored signal.
    """
    signal.signal(signal.SIGTERM, _do_nothing)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def _set_parent_death_signal(number: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "prctl(PR_SET_PDEATHSIG) failed")


def run(newborn: Newborn, code: Code, nursery: int) -> NoReturn:
    """Run the child of this nursery to its end; exit without the interpreter's clean-up, which is the nursery's."""
    status = 1
    try:
        _settle(nursery)
        if isinstance(newborn, NewSpare):
            _write_to(newborn.log)
            launched = _wait_for_launch(newborn, code)
        else:
            launched = newborn
        if launched is not None:
            _write_to(launched.request.log)
            code.load()(launched.request.worker, launched.sock, launched.request.launch)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _settle(nursery: int) -> None:
    """End with the nursery; leave SIGTERM to the agent, and handle other signals by default."""
    die_with_parent()
    if os.getppid() != nursery:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    survive_sigterm()


def _write_to(path: str) -> None:
    """Append this process's output to a file; it has no input."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)


def _wait_for_launch(spare: NewSpare, code: Code) -> NewWorker | None:
    """Import and open the device, then wait for the `Spawn`; None if the nursery has ended."""
    code.load()
    if code.warm and spare.device:
        _named(code.warm)(spare.device)
    with spare.line as line:
        # A nursery that has ended kills this process; until then its end of the line may be closed already.
        with contextlib.suppress(BrokenPipeError):
            line.send(WARM)
        data, descriptors, _, _ = socket.recv_fds(line, PACKET_LIMIT, 1)
    if not data or not descriptors:
        return None
    sock = socket.socket(fileno=descriptors[0])
    sock.set_inheritable(False)
    return NewWorker(msgspec.msgpack.decode(data, type=Spawn), sock)


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)
