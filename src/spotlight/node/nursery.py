"""Template process that workers are forked from: imports the heavy modules once, then forks in milliseconds.

    python -m spotlight.node.nursery --socket PATH --entry package.module:function --preload module ... [--bare]

Agents are free of torch, so they cannot fork workers themselves. They send requests (`nursery_client.py`) over a
sequenced-packet unix socket: one packet per message, and a `Spawn` carries the worker's end of a socket pair. The
agents of all nodes on this machine share one nursery.

A fork copies only the calling thread, but keeps the locks that other threads hold. So the nursery has one thread, and
where the imports start others, as builds of torch with CUDA do, it is bare: it imports nothing, workers import after
their fork, and each node has a spare process that has done so (`spares.py`).

Invariant (tests/processes/test_pool.py, test_spares.py): no worker and no spare outlives its agent, its nursery or the
nursery's owner. The kernel kills a child when the nursery ends. When an agent's connection or the owner's pipe (stdin)
closes, the nursery kills the agent's whole process group, to which its children belong.
"""

import argparse
import contextlib
import gc
import math
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from spotlight.node.newborn import (
    Code,
    Newborn,
    NewSpare,
    NewWorker,
    die_with_parent,
    outlive_parent,
    run,
    survive_sigterm,
)
from spotlight.node.nursery_packets import (
    PACKET_LIMIT,
    Exited,
    KeepSpare,
    KillChild,
    NurseryReply,
    NurseryRequest,
    Spawn,
    Spawned,
    Unborn,
)
from spotlight.node.spares import Spares

READY = b"ready\n"
"""Line on the nursery's stdout once it serves."""

_REQUEST = msgspec.msgpack.Decoder(NurseryRequest)
_POLL_END = select.POLLHUP | select.POLLERR


@dataclass
class _Client:
    """An agent: the leader of the process group that its workers join."""

    sock: socket.socket
    group: int
    children: set[int] = field(default_factory=set)


@dataclass
class _Child:
    pid: int
    client: _Client
    line: socket.socket | None = None
    """Connection to a child that was started as a spare. Open until its end: to close it before the child has read its
    packet could reset the connection."""
    is_worker: bool = False


class Nursery:
    """One thread with one poll: packets, ends of children, warm spares, due spares, the end of the owner's pipe."""

    def __init__(self, listener: socket.socket, owner: int, is_bare: bool) -> None:
        self._listener = listener
        self._owner = owner
        self._is_bare = is_bare
        self._spares = Spares(len(os.sched_getaffinity(0)))
        self._clients: dict[int, _Client] = {}
        """By file descriptor of the connection."""
        self._children: dict[int, _Child] = {}
        """By pidfd."""
        self._lines: dict[int, _Child] = {}
        """Spares that are not warm yet, by file descriptor of their line."""
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> Newborn | None:
        """Return None in the nursery when its owner is gone, and the arguments in each forked child."""
        while True:
            for descriptor, event in self._poll.poll(self._wait_ms()):
                newborn = None
                if descriptor == self._owner:
                    if event & _POLL_END or not os.read(self._owner, 1):
                        self._end_all()
                        return None
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._children:
                    self._reap(descriptor, os.WNOHANG)
                elif descriptor in self._lines:
                    self._warmed(self._lines[descriptor])
                elif descriptor in self._clients:
                    newborn = self._receive(self._clients[descriptor])
                if newborn is not None:
                    return newborn
            if (newborn := self._start_spare()) is not None:
                return newborn

    def forget(self) -> None:
        """In a child, close the nursery's descriptors; by object, so that no stale object closes a reused number."""
        self._listener.close()
        for client in self._clients.values():
            client.sock.close()
        for pidfd, child in self._children.items():
            os.close(pidfd)
            if child.line is not None:
                child.line.close()

    # -- agents --------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", credentials)[0]
        try:
            is_leader = os.getpgid(pid) == pid
        except ProcessLookupError:
            is_leader = False
        if not is_leader:
            # A client's whole group is killed at its end, so it may not contain unrelated processes.
            sock.close()
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = _Client(sock, pid)
        self._poll.register(sock.fileno(), select.POLLIN)

    def _receive(self, client: _Client) -> Newborn | None:
        request: NurseryRequest | None = None
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(client.sock, PACKET_LIMIT, 1)
            request = _REQUEST.decode(data) if data else None
        except BlockingIOError:
            return None  # the event belongs to an older connection with this number
        except ConnectionError:
            pass
        except msgspec.MsgspecError:
            traceback.print_exc()
        match request:
            case Spawn() if descriptors:
                return self._spawn(client, request, descriptors[0])
            case KeepSpare():
                if self._is_bare:
                    self._spares.keep(client.group, request, time.monotonic())
            case KillChild() if request.pid in client.children:
                os.kill(request.pid, signal.SIGKILL)
            case KillChild():
                pass
            case _:
                self._end(client)
        return None

    def _reply(self, client: _Client, reply: NurseryReply) -> None:
        try:
            client.sock.send(msgspec.msgpack.encode(reply))
        except OSError:
            # The agent is gone, or has not read hundreds of packets: it does not supervise any more.
            self._end(client)

    def _end(self, client: _Client) -> None:
        """Kill all processes of an agent that is gone, its reward processes and its spare included."""
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
        self._spares.forget(client.group)
        self._poll.unregister(client.sock.fileno())
        client.sock.close()
        _kill_group(client.group)
        for pid in sorted(client.children):
            os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        for client in list(self._clients.values()):
            self._end(client)
        for pidfd in list(self._children):
            self._reap(pidfd, 0)

    # -- children ------------------------------------------------------------------------------------------------------

    def _spawn(self, client: _Client, request: Spawn, descriptor: int) -> Newborn | None:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        spare = self._spares.take(client.group)
        child = next((each for each in self._children.values() if each.pid == spare), None)
        if child is not None and _hand_over(child, request, sock):
            sock.close()
            child.is_worker = True
            self._reply(client, Spawned(worker=request.worker, pid=child.pid))
            return None
        try:
            pid = os.fork()
        except OSError as error:
            sock.close()
            problem = f"no process could be forked ({error}); free memory or raise the limit on processes."
            self._reply(client, Unborn(worker=request.worker, problem=problem))
            return None
        if pid == 0:
            return NewWorker(request, sock)
        sock.close()
        self._adopt(_Child(pid, client, is_worker=True))
        self._reply(client, Spawned(worker=request.worker, pid=pid))
        return None

    def _adopt(self, child: _Child) -> None:
        """Make a forked child a member of its agent's group, and watch for its end."""
        try:
            os.setpgid(child.pid, child.client.group)
        except OSError:
            # The agent and its group have just ended; the end of its connection is read next.
            os.kill(child.pid, signal.SIGKILL)
        pidfd = os.pidfd_open(child.pid)
        self._children[pidfd] = child
        child.client.children.add(child.pid)
        self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int, options: int) -> None:
        child = self._children[pidfd]
        ended, status = os.waitpid(child.pid, options)
        if not ended:
            return  # the event belongs to an older child with this number
        del self._children[pidfd]
        self._poll.unregister(pidfd)
        os.close(pidfd)
        child.client.children.discard(child.pid)
        self._watch_no_longer(child)
        if child.line is not None:
            child.line.close()
        code = os.waitstatus_to_exitcode(status)
        pause_s = self._spares.ended(child.pid, time.monotonic())
        if pause_s is not None:
            _note(f"the spare process {child.pid} ended with status {code}: another one starts in {pause_s:g} s")
        if child.is_worker and child.client.sock.fileno() in self._clients:
            self._reply(child.client, Exited(pid=child.pid, status=code))

    # -- spares --------------------------------------------------------------------------------------------------------

    def _wait_ms(self) -> int | None:
        wait_s = self._spares.wait_s(time.monotonic())
        return None if wait_s is None else math.ceil(1000 * wait_s)

    def _start_spare(self) -> Newborn | None:
        """Fork one spare, if one is due."""
        found = self._spares.due(time.monotonic())
        if found is None:
            return None
        group, order = found
        client = next(client for client in self._clients.values() if client.group == group)
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:
            here.close()
            there.close()
            pause_s = self._spares.failed(group, time.monotonic())
            _note(f"no spare process could be forked ({error}): the next attempt is in {pause_s:g} s")
            return None
        if pid == 0:
            here.close()
            return NewSpare(there, order.device, order.log)
        there.close()
        here.setblocking(False)
        child = _Child(pid, client, here)
        self._adopt(child)
        self._lines[here.fileno()] = child
        self._poll.register(here.fileno(), select.POLLIN)
        self._spares.started(group, pid, time.monotonic())
        return None

    def _warmed(self, child: _Child) -> None:
        """Read a spare's only packet, or the end of its line, which the end of its process follows."""
        assert child.line is not None
        try:
            is_warm = bool(child.line.recv(PACKET_LIMIT))
        except BlockingIOError:
            return  # the event belongs to an older descriptor with this number
        except ConnectionError:
            is_warm = False
        self._watch_no_longer(child)
        if is_warm:
            self._spares.ready(child.pid)

    def _watch_no_longer(self, child: _Child) -> None:
        """Take a child's line out of the poll."""
        if child.line is not None and self._lines.pop(child.line.fileno(), None) is not None:
            self._poll.unregister(child.line.fileno())


def _hand_over(spare: _Child, request: Spawn, sock: socket.socket) -> bool:
    """Send a spare the request that makes it a worker; False if it has just ended."""
    assert spare.line is not None
    try:
        socket.send_fds(spare.line, [msgspec.msgpack.encode(request)], [sock.fileno()])
    except OSError:
        # It is no worker and no spare any more.
        os.kill(spare.pid, signal.SIGKILL)
        return False
    return True


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(group, signal.SIGKILL)


def _threads() -> list[str]:
    """Names of this process's threads."""
    return sorted(Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task"))


def _restart_bare(arguments: Sequence[str]) -> NoReturn:
    """Restart this process without imports, because a library started threads when it was imported."""
    _note(f"threads {', '.join(_threads())} after the imports: each worker imports after its fork")
    os.execv(sys.executable, [sys.executable, "-m", "spotlight.node.nursery", *arguments, "--bare"])


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path.unlink(missing_ok=True)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--entry", required=True, help="package.module:function that a worker runs")
    parser.add_argument("--preload", action="append", default=[], help="module to import before serving")
    parser.add_argument("--warm", default="", help="package.module:function that opens a device in a spare process")
    parser.add_argument("--bare", action="store_true", help="import nothing: each worker imports after its fork")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    code = Code(options.entry, options.preload, options.warm)
    # The imports take seconds, during which the owner's pipe is not watched.
    die_with_parent()
    survive_sigterm()
    # Half a million objects that all stay: collections during the imports take a fifth of their time.
    gc.disable()
    if not options.bare:
        code.load()
        if len(_threads()) > 1:
            _restart_bare(given)
    # Every worker shares these objects: keep the collector from touching, and so copying, their pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    nursery, pid = Nursery(_listen(options.socket), sys.stdin.fileno(), options.bare), os.getpid()
    os.write(sys.stdout.fileno(), READY)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    outlive_parent()
    newborn = nursery.serve()
    if newborn is not None:
        nursery.forget()
        run(newborn, code, pid)


if __name__ == "__main__":
    main()
