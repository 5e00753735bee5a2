"""Persistent rank processes for tests of crews: each keeps its model and its group between orders.

Tests use `Ranks`; the ranks run the functions of parallel_work.py, called by name.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from fork_server import forked
from store_thread import StoreThread

from spotlight.core.crew_messages import Forward, ForwardDone, GroupToken
from spotlight.core.types import NodeId, WorkerId

PATIENCE_S = 100.0
NODE = NodeId("spot-1.1")


class Problem(msgspec.Struct):
    """An error that an order raised."""

    kind: str
    message: str
    waited_for: str | None = None


def _serve(link: Connection) -> None:
    """Entry point of a rank; only the fork server imports the models, not the test."""
    from parallel_work import serve

    serve(link)


class Ranks:
    """`count` workers of one node, forked from a server that has imported everything."""

    def __init__(self, count: int, folder: Path) -> None:
        self.path = folder / "store"
        self.store = StoreThread(self.path)
        self.epoch = 0
        self._links: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        for rank in range(count):
            self.start(rank)

    def start(self, rank: int) -> None:
        self._links[rank], self._processes[rank] = forked(_serve)

    def kill(self, rank: int) -> None:
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        self._processes[rank].join(10)

    def pause(self, rank: int) -> None:
        os.kill(self._processes[rank].pid, signal.SIGSTOP)

    def send(self, rank: int, order: str, *arguments: Any) -> None:
        self._links[rank].send((order, arguments))

    def reply(self, rank: int) -> Any:
        if not self._links[rank].poll(PATIENCE_S):
            raise AssertionError(f"rank {rank} sent no reply within {PATIENCE_S} s")
        return self._links[rank].recv()

    def call(self, rank: int, order: str, *arguments: Any) -> Any:
        self.send(rank, order, *arguments)
        return self.reply(rank)

    def all(self, ranks: Sequence[int], order: str, *arguments: Any) -> list[Any]:
        for rank in ranks:
            self.send(rank, order, *arguments)
        return [self.reply(rank) for rank in ranks]

    def form(self, ranks: Sequence[int], limit_s: float = 20.0) -> list[Any]:
        """Form a new epoch with these members, in this order; returns the reply of each."""
        self.store.close(self.token)
        self.epoch += 1
        self.store.open(self.token)
        members = tuple(WorkerId(f"{NODE}/{rank}") for rank in ranks)
        for place, rank in enumerate(ranks):
            self.send(rank, "join", self.token, members, place, str(self.path), limit_s)
        return [self.reply(rank) for rank in ranks]

    def take_step(self, members: Sequence[int]) -> Any:
        """Step the leader's engine, with followers; returns the finished samples or the first problem."""
        leader, *followers = members
        self.send(leader, "step")
        while isinstance(reply := self.reply(leader), Forward | ForwardDone):
            if isinstance(reply, Forward):
                for rank in followers:
                    self.send(rank, "follow", reply)
        followed = [self.reply(rank) for rank in followers]
        return next((a for a in (reply, *followed) if isinstance(a, Problem)), reply)

    def attempt_step(self, members: Sequence[int]) -> dict[int, Any]:
        """Take a step in which members may die; returns the last reply of each survivor."""
        leader, *followers = members
        self.send(leader, "step")
        replies: dict[int, Any] = {}
        with suppress(EOFError):
            while isinstance(reply := self.reply(leader), Forward | ForwardDone):
                if isinstance(reply, Forward):
                    for rank in followers:
                        self.send(rank, "follow", reply)
            replies[leader] = reply
        for rank in followers:
            with suppress(EOFError):
                replies[rank] = self.reply(rank)
        return replies

    @property
    def token(self) -> GroupToken:
        return GroupToken(NODE, self.epoch)

    def end(self) -> None:
        for process in self._processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)
        self.store.stop()
