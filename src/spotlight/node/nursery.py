"""Template process that workers are forked from: imports the heavy modules once, then forks in milliseconds.

    python -m spotlight.node.nursery --socket PATH --entry package.module:function --preload module ...

Agents are free of torch, so they cannot fork workers themselves. They send requests (`nursery_client.py`) over a
sequenced-packet unix socket: one packet per message, and a `Spawn` carries the worker's end of a socket pair. The
agents of all nodes on this machine share one nursery.

Invariant (tests/processes/test_pool.py): no worker outlives its agent, its nursery or the nursery's owner. The kernel
kills a child when the nursery ends. When an agent's connection or the owner's pipe (stdin) closes, the nursery kills
the agent's whole process group, to which the workers belong. The nursery has one thread: a fork copies only the calling
thread, but keeps the locks that other threads hold.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec

from spotlight.core.types import WorkerId

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends; children do not inherit this."""
    _set_parent_death_signal(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that watches its owner's pipe and ends other processes first."""
    _set_parent_death_signal(0)


def _set_parent_death_signal(number: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "prctl(PR_SET_PDEATHSIG) failed")


PACKET_LIMIT = 128 << 10
"""Most bytes of one packet; the kernel's default send buffer takes a packet of about 200 KiB."""
READY = b"ready\n"
"""Line on the nursery's stdout once it serves."""

Entry: TypeAlias = Callable[[WorkerId, socket.socket, bytes], None]
"""Function that a worker runs, called with its id, its end of the socket to the agent, and its launch bytes."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of the messages between agents and the nursery; `tag` is the class name."""


class Spawn(Packet, frozen=True, kw_only=True):
    """Fork a worker; the packet carries its socket."""

    worker: WorkerId
    launch: bytes
    log: str
    """File to which the worker's output is appended."""


class KillChild(Packet, frozen=True, kw_only=True):
    """Send SIGKILL to a child of the requesting agent; a no-op if it is gone. A parent never hits a reused pid."""

    pid: int


class Spawned(Packet, frozen=True, kw_only=True):
    worker: WorkerId
    pid: int


class Unborn(Packet, frozen=True, kw_only=True):
    """The worker could not be forked, with the reason."""

    worker: WorkerId
    problem: str


class Exited(Packet, frozen=True, kw_only=True):
    pid: int
    status: int
    """Exit code; if negative, minus the signal that killed it."""


NurseryRequest: TypeAlias = Spawn | KillChild
NurseryReply: TypeAlias = Spawned | Unborn | Exited

_REQUEST = msgspec.msgpack.Decoder(NurseryRequest)
_POLL_END = select.POLLHUP | select.POLLERR


@dataclass
class _Client:
    """An agent: the leader of the process group that its workers join."""

    sock: socket.socket
    group: int
    children: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Forked:
    """Arguments of a freshly forked child that becomes a worker."""

    worker: WorkerId
    sock: socket.socket
    launch: bytes
    log: str


class Nursery:
    """One thread with one poll, for packets, exits of children and the end of the owner's pipe."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._owner = owner
        self._clients: dict[int, _Client] = {}
        """By file descriptor of the connection."""
        self._children: dict[int, tuple[int, _Client]] = {}
        """Pid and agent of each child, by pidfd."""
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> _Forked | None:
        """Return None in the nursery when its owner is gone, and the worker's arguments in each forked child."""
        while True:
            for descriptor, event in self._poll.poll():
                if descriptor == self._owner:
                    if event & _POLL_END or not os.read(self._owner, 1):
                        self._end_all()
                        return None
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._children:
                    self._reap(descriptor, os.WNOHANG)
                elif descriptor in self._clients:
                    forked = self._receive(self._clients[descriptor])
                    if forked is not None:
                        return forked

    def forget(self) -> None:
        """In a child, close the nursery's descriptors; by object, so that no stale object closes a reused number."""
        self._listener.close()
        for client in self._clients.values():
            client.sock.close()
        for pidfd in self._children:
            os.close(pidfd)

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

    def _receive(self, client: _Client) -> _Forked | None:
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
            case KillChild() if request.pid in client.children:
                os.kill(request.pid, signal.SIGKILL)
            case KillChild():
                pass
            case _:
                self._end(client)
        return None

    def _spawn(self, client: _Client, request: Spawn, descriptor: int) -> _Forked | None:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        try:
            pid = os.fork()
        except OSError as error:
            sock.close()
            problem = f"no process could be forked ({error}); free memory or raise the limit on processes."
            self._reply(client, Unborn(worker=request.worker, problem=problem))
            return None
        if pid == 0:
            return _Forked(request.worker, sock, request.launch, request.log)
        sock.close()
        try:
            os.setpgid(pid, client.group)
        except OSError:
            # The agent and its group have just ended; the end of its connection is read next.
            os.kill(pid, signal.SIGKILL)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, client)
        client.children.add(pid)
        self._poll.register(pidfd, select.POLLIN)
        self._reply(client, Spawned(worker=request.worker, pid=pid))
        return None

    def _reap(self, pidfd: int, options: int) -> None:
        pid, client = self._children[pidfd]
        ended, status = os.waitpid(pid, options)
        if not ended:
            return  # the event belongs to an older child with this number
        del self._children[pidfd]
        self._poll.unregister(pidfd)
        os.close(pidfd)
        client.children.discard(pid)
        if client.sock.fileno() in self._clients:
            self._reply(client, Exited(pid=pid, status=os.waitstatus_to_exitcode(status)))

    def _reply(self, client: _Client, reply: NurseryReply) -> None:
        try:
            client.sock.send(msgspec.msgpack.encode(reply))
        except OSError:
            # The agent is gone, or has not read hundreds of packets: it does not supervise any more.
            self._end(client)

    def _end(self, client: _Client) -> None:
        """Kill all processes of an agent that is gone, its reward processes included."""
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
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


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(group, signal.SIGKILL)


def _threads() -> list[str]:
    """Names of this process's threads."""
    return sorted(Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task"))


def _restart_bare(arguments: Sequence[str]) -> NoReturn:
    """Restart this process without imports, because a library started threads when it was imported.

    A fork copies one thread, but the locks of all. Each worker then imports after the fork and starts more slowly;
    nothing else differs.
    """
    sys.stderr.write(f"threads {', '.join(_threads())} after the imports: each worker imports after its fork\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "spotlight.node.nursery", *arguments, "--bare"])


def _become_worker(forked: _Forked, nursery: int) -> None:
    die_with_parent()
    if os.getppid() != nursery:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(forked.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)


def _entry(name: str) -> Entry:
    module, _, function = name.partition(":")
    found: Entry = getattr(importlib.import_module(module), function)
    return found


def _run_worker(entry: str, forked: _Forked) -> NoReturn:
    """Run the worker to its end; exit without the interpreter's clean-up, which belongs to the nursery."""
    status = 1
    try:
        _entry(entry)(forked.worker, forked.sock, forked.launch)
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


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
    parser.add_argument("--bare", action="store_true", help="import nothing: each worker imports after its fork")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    # The imports take seconds, during which the owner's pipe is not watched.
    die_with_parent()
    # Half a million objects that all stay: collections during the imports take a fifth of their time.
    gc.disable()
    if not options.bare:
        for module in options.preload:
            importlib.import_module(module)
        _entry(options.entry)
        if len(_threads()) > 1:
            _restart_bare(given)
    # Every worker shares these objects: keep the collector from touching, and so copying, their pages.
    gc.collect()
    gc.freeze()
    gc.enable()
    nursery, pid = Nursery(_listen(options.socket), owner=sys.stdin.fileno()), os.getpid()
    os.write(sys.stdout.fileno(), READY)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    outlive_parent()
    forked = nursery.serve()
    if forked is not None:
        nursery.forget()
        _become_worker(forked, pid)
        _run_worker(options.entry, forked)


if __name__ == "__main__":
    main()
