"""What a group is made of: one stateless process group of torch, and the thread on which old ones are taken down.

A link does one thing: hand tensors to peers and take theirs, within a limit. It answers with the peer that failed
instead of raising, because an exception keeps the frames of its traceback alive, and with them the library's object:
its sockets would stay open, and the peers that wait on them would not learn of the failure.

NCCL is unverified: no machine with several GPUs was at hand, and NCCL refuses two ranks on one device. So are tensors
on a device over gloo.
"""

import atexit
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from spotlight.compute.parallel.store_client import AgentStore

LOOPBACK = "127.0.0.1"
"""A crew never spans nodes."""
TEARDOWN_PATIENCE_S = 2.0
"""How long a process that exits waits for groups in teardown; one takes about 30 ms."""


@dataclass(frozen=True)
class ExchangeFailure:
    """Whom an exchange was waiting for, and what the library said; no peer where it does not tell."""

    peer: int | None
    problem: str


class Link(Protocol):
    host_only: bool
    """Whether tensors on a device must be copied to the host on the way."""

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
    ) -> ExchangeFailure | None:
        """Contiguous tensors to and from peers; returns once all are there."""

    def abort(self) -> None:
        """Called before the library's object is let go."""


class GlooLink:
    """Sends and receives on gloo's full mesh of TCP connections; the mesh exists once this is built."""

    host_only = True

    def __init__(self, store: AgentStore, rank: int, size: int, timeout_s: float) -> None:
        group_class: Any = dist.ProcessGroupGloo
        options = group_class._Options()
        options._devices = [_gloo_device(os.getpid())]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = group_class(store, rank, size, options)
        # The library keeps only its own half of the store.
        self._store = store

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
    ) -> ExchangeFailure | None:
        deadline = time.monotonic() + limit_s
        started: list[tuple[int, Any]] = []
        waiting_for = None
        try:
            for waiting_for, tensor in receives.items():
                started.append((waiting_for, self._group.recv([tensor], waiting_for, 0)))
            for waiting_for, tensor in sends.items():
                started.append((waiting_for, self._group.send([tensor], waiting_for, 0)))
            for waiting_for, work in started:  # noqa: B007
                # One limit for all of it; the library takes no less than a millisecond.
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except RuntimeError as error:
            return ExchangeFailure(waiting_for, _first_line(error))
        return None

    def abort(self) -> None:
        """Gloo's own abort unblocks nobody; closing the sockets does, when the object goes."""


class NcclLink:
    """Grouped sends and receives on an NCCL communicator, made without blocking and aborted when dropped; unverified.

    The store stays connected, because torch's watchdog thread asks it.
    """

    host_only = False

    def __init__(self, store: AgentStore, rank: int, size: int, timeout_s: float) -> None:
        group_class: Any = dist.ProcessGroupNCCL
        options = group_class.Options()
        options._timeout = timedelta(seconds=timeout_s)
        options.config.blocking = 0
        self._group: Any = group_class(store, rank, size, options)
        self._store = store

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
    ) -> ExchangeFailure | None:
        try:
            self._group._start_coalescing()
            for peer, tensor in receives.items():
                self._group.recv([tensor], peer, 0)
            for peer, tensor in sends.items():
                self._group.send([tensor], peer, 0)
            work = self._group._end_coalescing()
            # Waits on the host: a step that hangs must raise here, not at the next copy.
            if not work.wait(timedelta(seconds=limit_s)):
                return ExchangeFailure(None, f"the exchange did not end within {limit_s:g} s")
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            return ExchangeFailure(None, _first_line(error))
        return None

    def abort(self) -> None:
        self._group.abort()
        self._store.close()


class _Undertaker:
    """Takes old links down on a thread of its own, one after another; the last reference ends there."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Link | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="group-teardown", daemon=True).start()
        # Torch's threads must not outlive the interpreter.
        atexit.register(self.wait, TEARDOWN_PATIENCE_S)

    def take(self, link: Link) -> None:
        self._queue.put(link)

    def wait(self, limit_s: float) -> bool:
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(limit_s)

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                item.abort()
            del item


@cache
def _undertaker(process: int) -> _Undertaker:
    return _Undertaker()


def bury(link: Link) -> None:
    """Let a link go without waiting for it; the caller keeps no reference."""
    _undertaker(os.getpid()).take(link)


def wait_for_teardown(limit_s: float = TEARDOWN_PATIENCE_S) -> bool:
    """Whether everything that was dropped so far is gone, waiting for it at most this long."""
    return _undertaker(os.getpid()).wait(limit_s)


@cache
def _gloo_device(process: int) -> Any:
    """One listening socket and one event thread for all groups of a process; a fork needs its own."""
    return dist.ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;: ")
