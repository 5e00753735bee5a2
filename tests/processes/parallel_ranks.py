"""Persistent rank processes for tests of crews: each keeps its model and its group between orders.

The test's side is `Ranks`; what runs in the ranks are the functions in parallel_work.py, called by name.
"""

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from store_thread import StoreThread

from spotlight.core.crew_messages import Forward, ForwardDone, GroupToken
from spotlight.core.types import NodeId, WorkerId

PATIENCE_S = 100.0
NODE = NodeId("spot-1.1")


class Problem(msgspec.Struct):
    """What an order raised."""

    kind: str
    message: str
    waited_for: str | None = None


def _serve(link: Connection) -> None:
    """In the rank, so that only the fork server and no test imports the models."""
    from parallel_work import serve

    serve(link)


@contextmanager
def _server_environment() -> Iterator[None]:
    """What the fork server, which the first rank starts, must find: it imports by this path alone."""
    before = dict(os.environ)
    folders = [Path(__file__).parent, Path(__file__).parents[1] / "unit"]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, folders))}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Ranks:
    """`count` workers of one node, forked from a server that has imported everything."""

    def __init__(self, count: int, folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["parallel_work"])
        self.path = folder / "store"
        self.store = StoreThread(self.path)
        self.epoch = 0
        self._context = context
        self._links: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}
        with _server_environment():
            for rank in range(count):
                self.start(rank)

    def start(self, rank: int) -> None:
        mine, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._links[rank], self._processes[rank] = mine, process

    def kill(self, rank: int) -> None:
        os.kill(self._processes[rank].pid, signal.SIGKILL)
        self._processes[rank].join(10)

    def pause(self, rank: int) -> None:
        os.kill(self._processes[rank].pid, signal.SIGSTOP)

    def send(self, rank: int, order: str, *arguments: Any) -> None:
        self._links[rank].send((order, arguments))

    def answer(self, rank: int) -> Any:
        if not self._links[rank].poll(PATIENCE_S):
            raise AssertionError(f"rank {rank} did not answer within {PATIENCE_S} s")
        return self._links[rank].recv()

    def ask(self, rank: int, order: str, *arguments: Any) -> Any:
        self.send(rank, order, *arguments)
        return self.answer(rank)

    def all(self, ranks: Sequence[int], order: str, *arguments: Any) -> list[Any]:
        for rank in ranks:
            self.send(rank, order, *arguments)
        return [self.answer(rank) for rank in ranks]

    def form(self, ranks: Sequence[int], limit_s: float = 20.0) -> list[Any]:
        """A new epoch with these members, in this order; answers of all of them."""
        self.store.close(self.token)
        self.epoch += 1
        self.store.open(self.token)
        members = tuple(WorkerId(f"{NODE}/{rank}") for rank in ranks)
        for place, rank in enumerate(ranks):
            self.send(rank, "join", self.token, members, place, str(self.path), limit_s)
        return [self.answer(rank) for rank in ranks]

    def take_step(self, members: Sequence[int]) -> Any:
        """The leader steps its engine, the others take part when told; what finished, or whoever's problem."""
        leader, *followers = members
        self.send(leader, "step")
        while isinstance(answer := self.answer(leader), Forward | ForwardDone):
            if isinstance(answer, Forward):
                for rank in followers:
                    self.send(rank, "follow", answer)
        followed = [self.answer(rank) for rank in followers]
        return next((a for a in (answer, *followed) if isinstance(a, Problem)), answer)

    def attempt_step(self, members: Sequence[int]) -> dict[int, Any]:
        """The last answers by rank, of a step that not all may survive; the dead have none."""
        leader, *followers = members
        self.send(leader, "step")
        answers: dict[int, Any] = {}
        with suppress(EOFError):
            while isinstance(answer := self.answer(leader), Forward | ForwardDone):
                if isinstance(answer, Forward):
                    for rank in followers:
                        self.send(rank, "follow", answer)
            answers[leader] = answer
        for rank in followers:
            with suppress(EOFError):
                answers[rank] = self.answer(rank)
        return answers

    @property
    def token(self) -> GroupToken:
        return GroupToken(NODE, self.epoch)

    def end(self) -> None:
        for process in self._processes.values():
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join(10)
        self.store.stop()
