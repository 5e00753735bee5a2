"""One server per test process that has imported torch and the models: what tests start in it imports nothing again.

Every other interpreter that imports them takes 5 s of a processor. Runs that a test only compares with lend its
`nursery`; the runs under test start their own.
"""

import atexit
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from node_world import MARK

import spotlight

TESTS = Path(__file__).parents[1]
FOLDERS = [TESTS / "processes", TESTS / "unit", TESTS / "conformance", Path(spotlight.__file__).parents[1]]
PRELOADED = ["gang_work", "parallel_work", "flight_nursery", "spotlight.node.worker"]
CONTEXT = multiprocessing.get_context("forkserver")
START_S = 120.0


@contextmanager
def _server_environment() -> Iterator[None]:
    """Environment of the server, which the first process starts: it imports by this path, and by that of this process.

    It has no mark: the server outlives the test that starts it.
    """
    before = dict(os.environ)
    os.environ.pop(MARK, None)
    path = [*map(str, FOLDERS), *filter(None, [before.get("PYTHONPATH")])]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def forked(serve: Callable[..., None], *arguments: object) -> tuple[Connection, BaseProcess]:
    """Start a process that calls `serve` with its end of a connection; returns the other end and the process."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    return _start(CONTEXT, serve, arguments)


def spawned(serve: Callable[..., None], *arguments: object) -> tuple[Connection, BaseProcess]:
    """As `forked`, but the process imports by itself: where the server uses CUDA, a process that it forks cannot."""
    return _start(multiprocessing.get_context("spawn"), serve, arguments)


def _start(
    context: ForkServerContext | SpawnContext, serve: Callable[..., None], arguments: Sequence[object]
) -> tuple[Connection, BaseProcess]:
    mine, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    with _server_environment():
        process.start()
    theirs.close()
    return mine, process


@cache
def nursery() -> Path:
    """Socket of a nursery of real workers; it ends with this process, which keeps its connection."""
    socket = Path(tempfile.mkdtemp(prefix="nursery-")) / "nursery.sock"
    link, _ = forked(_be_a_nursery, str(socket))
    assert link.poll(START_S), "the nursery did not start"
    # Before multiprocessing waits for its children at the exit.
    atexit.register(link.close)
    return socket


def _be_a_nursery(link: Connection, socket: str) -> None:
    from spotlight.node import nursery

    # Its owner is at its standard input, and it writes one line to its standard output when it serves.
    os.dup2(link.fileno(), 0)
    os.dup2(link.fileno(), 1)
    sys.stdin = os.fdopen(0)
    worker = "spotlight.node.worker"
    nursery.main(["--socket", socket, "--entry", f"{worker}:entry", "--preload", worker])
