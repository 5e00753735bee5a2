"""Persistent rank processes for tests of gangs; they run the functions of gang_work.py, called by name."""

import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from fork_server import forked, spawned

PATIENCE_S = 60.0


class Raised(msgspec.Struct):
    """An error that an order raised."""

    kind: str
    message: str
    waited_for: int | None = None
    seconds: float = 0.0


def _serve(link: Connection) -> None:
    """Entry point of a rank; only the fork server imports the models, not the test."""
    from gang_work import serve

    serve(link)


class GangRanks:
    """`count` processes that can form gangs, forked from a server that has imported everything.

    Those that use a GPU are spawned.
    """

    def __init__(self, count: int, on_gpus: bool = False) -> None:
        self._begin = spawned if on_gpus else forked
        self._links: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        self.epoch = 0
        for rank in range(count):
            self.start(rank)

    def start(self, process: int) -> None:
        self._links[process], self._processes[process] = self._begin(_serve)

    def kill(self, process: int) -> None:
        os.kill(self._processes[process].pid, signal.SIGKILL)
        self._processes[process].join(10)

    def pause(self, process: int) -> None:
        os.kill(self._processes[process].pid, signal.SIGSTOP)

    def died(self, process: int) -> bool:
        self._processes[process].join(PATIENCE_S)
        return not self._processes[process].is_alive()

    def send(self, process: int, order: str, *arguments: Any, **named: Any) -> None:
        self._links[process].send((order, (arguments, named)))

    def reply(self, process: int) -> Any:
        if not self._links[process].poll(PATIENCE_S):
            raise AssertionError(f"process {process} sent no reply within {PATIENCE_S} s")
        return self._links[process].recv()

    def call(self, process: int, order: str, *arguments: Any, **named: Any) -> Any:
        self.send(process, order, *arguments, **named)
        return self.reply(process)

    def all(self, processes: Sequence[int], order: str, *arguments: Any, **named: Any) -> list[Any]:
        for process in processes:
            self.send(process, order, *arguments, **named)
        return [self.reply(process) for process in processes]

    def form(self, processes: Sequence[int], **links: Any) -> list[Any]:
        """Form the next gang of these processes, in rank order; returns the reply of each."""
        self.epoch += 1
        address = self.call(processes[0], "open_for", links) if len(processes) > 1 else ""
        for rank, process in enumerate(processes):
            self.send(process, "join", address, self.epoch, rank, len(processes), links)
        return [self.reply(process) for process in processes]

    def end(self) -> None:
        for process in self._processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)
