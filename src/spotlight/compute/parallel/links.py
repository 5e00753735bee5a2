"""Links of a group: one stateless process group of torch each, and the thread that tears old ones down.

A link exchanges tensors with peers, within a limit. It returns the peer that failed instead of raising. An exception
would keep the frames of its traceback alive, and with them the library's object: its sockets would stay open, and the
peers that wait on them would not fail.

NCCL is unverified: no machine with several GPUs was available, and NCCL refuses two ranks on one device.
"""

import atexit
import contextlib
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
"""Address of every member of a crew, which never spans nodes."""
CUT_TAG = 99
"""Tag of the receive that cuts a gloo link; no exchange uses it."""
TEARDOWN_PATIENCE_S = 2.0
"""Longest wait of an exiting process for groups in teardown; one takes about 30 ms."""


@dataclass(frozen=True)
class ExchangeFailure:
    """The peer that an exchange waited for, if the library names it, and the library's error."""

    peer: int | None
    problem: str


class GroupLink(Protocol):
    host_only: bool
    """Whether tensors on a device must be copied to the host on the way."""

    def exchange(
        self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
    ) -> ExchangeFailure | None:
        """Send and receive contiguous tensors; returns when all have arrived."""

    def cut(self) -> None:
        """Fail the exchange under way, here and at the peers, from any thread."""

    def abort(self) -> None:
        """Abort the library's object before it is released."""


class GlooLink:
    """Sends and receives on gloo's full mesh of TCP connections, which the constructor builds."""

    host_only = True

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, host: str = LOOPBACK) -> None:
        group_class: Any = dist.ProcessGroupGloo
        options = group_class._Options()
        options._devices = [_gloo_device(os.getpid(), host)]
        options._threads = 1
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = group_class(store, rank, size, options)
        self._peers = [peer for peer in range(size) if peer != rank]
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
            return ExchangeFailure(waiting_for, first_line(error))
        return None

    def cut(self) -> None:
        """Let a receive run into its timeout: gloo then closes every connection of the group.

        Its abort unblocks neither this process nor the peers.
        """
        for peer in self._peers:
            # A connection that has failed already raises at once and leaves the others open: try each peer.
            with contextlib.suppress(RuntimeError):
                self._group.recv([torch.empty(1)], peer, CUT_TAG).wait(timedelta(milliseconds=1))

    def abort(self) -> None:
        """Do nothing: gloo's abort does not unblock peers; releasing the object closes the sockets."""


class NcclLink:
    """Grouped sends and receives on an NCCL communicator, made without blocking and aborted when dropped; unverified.

    The store stays connected for torch's watchdog thread.
    """

    host_only = False

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
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
            return ExchangeFailure(None, first_line(error))
        return None

    def cut(self) -> None:
        self._group.abort()

    def abort(self) -> None:
        self._group.abort()
        if isinstance(self._store, AgentStore):
            self._store.close()


class _Teardown:
    """Tears old links down one after another on a separate thread, which holds the last reference."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[GroupLink | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="group-teardown", daemon=True).start()
        # Torch's threads must not outlive the interpreter.
        atexit.register(self.wait, TEARDOWN_PATIENCE_S)

    def add(self, link: GroupLink) -> None:
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


def tear_down(link: GroupLink) -> None:
    """Release a link without waiting for it; the caller must keep no reference."""
    _teardown(os.getpid()).add(link)


def wait_for_teardown(limit_s: float = TEARDOWN_PATIENCE_S) -> bool:
    """Wait until every link dropped so far is torn down; False after `limit_s`."""
    return _teardown(os.getpid()).wait(limit_s)


def staged_exchange(
    link: GroupLink, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], limit_s: float
) -> ExchangeFailure | None:
    """Exchange tensors of any device; those of a device pass through pinned memory if the link needs it."""
    on_device = any(tensor.is_cuda for tensor in (*sends.values(), *receives.values()))
    if not (link.host_only and on_device):
        return link.exchange(sends, receives, limit_s)
    arrived = {peer: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for peer, t in receives.items()}
    failure = link.exchange(_to_host(sends), arrived, limit_s)
    if failure is None:
        for peer, tensor in receives.items():
            tensor.copy_(arrived[peer], non_blocking=True)
    return failure


def _to_host(tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Copy tensors to pinned memory, each once even for several peers; the copies are complete on return."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies[id(tensor)] = host.copy_(tensor, non_blocking=True)
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return {peer: copies[id(tensor)] for peer, tensor in tensors.items()}


@cache
def _gloo_device(process: int, host: str) -> Any:
    """One listening socket and one event thread for all groups of a process; a forked process needs its own."""
    return dist.ProcessGroupGloo.create_device(hostname=host, lazy_init=False)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;: ")
