"""Links of a group: one stateless process group of torch each, and the thread that tears old ones down.

A link exchanges tensors with peers, within a limit. It returns the peer that failed instead of raising. An exception
would keep the frames of its traceback alive, and with them the library's object: its sockets would stay open, and the
peers that wait on them would not fail.

NCCL is unverified: no machine with several GPUs was available, and NCCL refuses two ranks on one device.
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
"""Address of every member: a crew never spans nodes."""
TEARDOWN_PATIENCE_S = 2.0
"""Longest wait of an exiting process for groups in teardown; one takes about 30 ms."""


@dataclass(frozen=True)
class ExchangeFailure:
    """The peer that an exchange waited for, if the library names it, and the library's error."""

    peer: int | None
    problem: str


class Link(Protocol):
    host_only: bool
    """Whether tensors on a device must be copied to the host on the way."""

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
    ) -> ExchangeFailure | None:
        """Send and receive contiguous tensors; returns when all have arrived."""

    def abort(self) -> None:
        """Abort the library's object before it is released."""


class GlooLink:
    """Sends and receives on gloo's full mesh of TCP connections, which the constructor builds."""

    host_only = True

    def __init__(self, store: AgentStore, rank: int, size: int, timeout_s: float) -> None:
        group_class: Any = dist.ProcessGroupGloo
        options = group_class._Options()
        options._devices = [_gloo_device(os.getpid())]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = group_class(store, rank, size, options)
        # The library references only the C++ half of the store.
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
                # One limit for the whole exchange; the library accepts no less than a millisecond.
                work.wait(timedelta(seconds=max(0.001, deadline - time.monotonic())))
        except RuntimeError as error:
            return ExchangeFailure(waiting_for, _first_line(error))
        return None

    def abort(self) -> None:
        """Do nothing: gloo's abort does not unblock peers; releasing the object closes the sockets."""


class NcclLink:
    """Grouped sends and receives on an NCCL communicator, made without blocking and aborted when dropped; unverified.

    The store stays connected for torch's watchdog thread.
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
            # Wait on the host: a step that hangs must fail here, not at the next copy.
            if not work.wait(timedelta(seconds=limit_s)):
                return ExchangeFailure(None, f"the exchange did not end within {limit_s:g} s")
            torch.cuda.current_stream().synchronize()
        except RuntimeError as error:
            return ExchangeFailure(None, _first_line(error))
        return None

    def abort(self) -> None:
        self._group.abort()
        self._store.close()


class _Teardown:
    """Tears old links down one after another on a separate thread, which holds the last reference."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Link | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="group-teardown", daemon=True).start()
        # Torch's threads must not outlive the interpreter.
        atexit.register(self.wait, TEARDOWN_PATIENCE_S)

    def add(self, link: Link) -> None:
        self._queue.put(link)

    def wait(self, limit_s: float) -> bool:
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(limit_s)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                item.abort()
            del item


@cache
def _teardown(process: int) -> _Teardown:
    return _Teardown()


def tear_down(link: Link) -> None:
    """Release a link without waiting for it; the caller must keep no reference."""
    _teardown(os.getpid()).add(link)


def wait_for_teardown(limit_s: float = TEARDOWN_PATIENCE_S) -> bool:
    """Wait until every link dropped so far is torn down; False after `limit_s`."""
    return _teardown(os.getpid()).wait(limit_s)


@cache
def _gloo_device(process: int) -> Any:
    """One listening socket and one event thread for all groups of a process; a forked process needs its own."""
    return dist.ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;: ")
