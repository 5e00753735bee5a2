"""The template that workers are forked from: imports the heavy modules once, then forks in milliseconds.

    python -m spotlight.node.nursery --socket PATH --entry package.module:function --preload module ...

Agents stay free of torch, so they cannot fork workers themselves; they ask here (`nursery_client.py`), over a
sequenced-packet unix socket: one packet per message, and a `Spawn` carries the worker's end of a socket pair. Agents of
several simulated nodes share one nursery.

Invariant: no worker outlives its agent, its nursery or the nursery's owner (tests/processes/test_pool.py). A child
dies with the nursery (kernel); when an agent's connection or the owner's pipe (stdin) closes, the nursery kills the
agent's whole process group, to which the workers belong. It must have one thread: a fork copies only the caller's, with
every lock that others hold.
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
    """SIGKILL for this process when the thread that started it ends. Does not pass on to children."""
    _set_parent_death_signal(signal.SIGKILL)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that watches its owner's pipe and has something to end first."""
    _set_parent_death_signal(0)


def _set_parent_death_signal(number: int) -> None:
    if _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, "prctl(PR_SET_PDEATHSIG) failed")


PACKET_LIMIT = 128 << 10
"""Bytes of one packet; the kernel's default send buffer takes a packet of about 200 KiB."""
READY = b"ready\n"
"""What the owner reads from the nursery's stdout once it serves."""

Entry: TypeAlias = Callable[[WorkerId, socket.socket, bytes], None]
"""What a worker runs: its id, its end of the socket to the agent, and the bytes that the agent gave for it."""


class Packet(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base of what agents and the nursery say; `tag` is the class name."""


class Spawn(Packet, frozen=True, kw_only=True):
    """Fork a worker; the packet carries its socket."""

    worker: WorkerId
    launch: bytes
    log: str
    """File that its output is appended to."""


class KillChild(Packet, frozen=True, kw_only=True):
    """SIGKILL to a child of the asking agent; nothing if it is gone. The parent can never hit a reused pid."""

    pid: int


class Spawned(Packet, frozen=True, kw_only=True):
    worker: WorkerId
    pid: int


class Unborn(Packet, frozen=True, kw_only=True):
    """There is no such worker, and why."""

    worker: WorkerId
    problem: str


class Exited(Packet, frozen=True, kw_only=True):
    pid: int
    status: int
    """Exit code; negative is the signal that killed it."""


Asked: TypeAlias = Spawn | KillChild
Told: TypeAlias = Spawned | Unborn | Exited

_ASKED = msgspec.msgpack.Decoder(Asked)
_POLL_END = select.POLLHUP | select.POLLERR


@dataclass
class _Client:
    """An agent: the leader of the process group that its workers join."""

    sock: socket.socket
    group: int
    children: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Birth:
    """What a freshly forked child needs to become a worker."""

    worker: WorkerId
    sock: socket.socket
    launch: bytes
    log: str


class Nursery:
    """One thread, one poll: waits for packets, ends of children, the end of the owner's pipe, and nothing else."""

    def __init__(self, listener: socket.socket, owner: int) -> None:
        self._listener = listener
        self._owner = owner
        self._clients: dict[int, _Client] = {}
        """By file descriptor of the connection."""
        self._children: dict[int, tuple[int, _Client]] = {}
        """By pidfd: pid and whose it is."""
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._poll.register(owner, select.POLLIN)

    def serve(self) -> _Birth | None:
        """Returns None in the nursery when its owner is gone, and a birth in each forked child."""
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
                    birth = self._hear(self._clients[descriptor])
                    if birth is not None:
                        return birth

    def forget(self) -> None:
        """In a child: close all that belongs to the nursery. By object, so that no stale one closes a reused number."""
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
            # Its group is killed as a whole at its end, so it may not contain strangers.
            sock.close()
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = _Client(sock, pid)
        self._poll.register(sock.fileno(), select.POLLIN)

    def _hear(self, client: _Client) -> _Birth | None:
        asked: Asked | None = None
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(client.sock, PACKET_LIMIT, 1)
            asked = _ASKED.decode(data) if data else None
        except BlockingIOError:
            return None  # the event was of an older connection with this number
        except ConnectionError:
            pass
        except msgspec.MsgspecError:
            traceback.print_exc()
        match asked:
            case Spawn() if descriptors:
                return self._spawn(client, asked, descriptors[0])
            case KillChild() if asked.pid in client.children:
                os.kill(asked.pid, signal.SIGKILL)
            case KillChild():
                pass
            case _:
                self._end(client)
        return None

    def _spawn(self, client: _Client, asked: Spawn, descriptor: int) -> _Birth | None:
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        try:
            pid = os.fork()
        except OSError as error:
            sock.close()
            problem = f"no process could be forked for it ({error}); free memory or raise the limit on processes."
            self._tell(client, Unborn(worker=asked.worker, problem=problem))
            return None
        if pid == 0:
            return _Birth(asked.worker, sock, asked.launch, asked.log)
        sock.close()
        try:
            os.setpgid(pid, client.group)
        except OSError:
            # The agent is just gone, and its group with it; its connection tells so next.
            os.kill(pid, signal.SIGKILL)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, client)
        client.children.add(pid)
        self._poll.register(pidfd, select.POLLIN)
        self._tell(client, Spawned(worker=asked.worker, pid=pid))
        return None

    def _reap(self, pidfd: int, options: int) -> None:
        pid, client = self._children[pidfd]
        ended, status = os.waitpid(pid, options)
        if not ended:
            return  # the event was of an older child with this number
        del self._children[pidfd]
        self._poll.unregister(pidfd)
        os.close(pidfd)
        client.children.discard(pid)
        if client.sock.fileno() in self._clients:
            self._tell(client, Exited(pid=pid, status=os.waitstatus_to_exitcode(status)))

    def _tell(self, client: _Client, told: Told) -> None:
        try:
            client.sock.send(msgspec.msgpack.encode(told))
        except OSError:
            # Gone, or stopped for hundreds of packets: either way it does not supervise any more.
            self._end(client)

    def _end(self, client: _Client) -> None:
        """The agent is gone: so is everything of its node, its reward processes too."""
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
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(group, signal.SIGKILL)


def _threads() -> list[str]:
    """Names of this process's threads."""
    return sorted(Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task"))


def _start_over_bare(arguments: Sequence[str]) -> NoReturn:
    """Some library started threads when it was imported, and a fork copies one thread with the locks of all.

    So this process begins again and imports nothing; each worker then does so itself, after the fork, and is slower to
    start. Nothing else is different.
    """
    sys.stderr.write(f"threads {', '.join(_threads())} after the imports: workers will import by themselves\n")
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "spotlight.node.nursery", *arguments, "--bare"])


def _become_worker(birth: _Birth, nursery: int) -> None:
    die_with_parent()
    if os.getppid() != nursery:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    log = os.open(birth.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)


def _entry(name: str) -> Entry:
    module, _, function = name.partition(":")
    found: Entry = getattr(importlib.import_module(module), function)
    return found


def _live(entry: str, birth: _Birth) -> NoReturn:
    """Run the worker to its end. Leaves without the interpreter's clean-up, which belongs to the nursery."""
    status = 1
    try:
        _entry(entry)(birth.worker, birth.sock, birth.launch)
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
    parser.add_argument("--bare", action="store_true", help="import nothing: workers do it themselves")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    # Imports take seconds in which the owner's pipe is not watched.
    die_with_parent()
    if not options.bare:
        for module in options.preload:
            importlib.import_module(module)
        _entry(options.entry)
        if len(_threads()) > 1:
            _start_over_bare(given)
    # What lives here lives in every worker: keep the collector from touching, and so copying, these pages.
    gc.collect()
    gc.freeze()
    nursery, pid = Nursery(_listen(options.socket), owner=sys.stdin.fileno()), os.getpid()
    os.write(sys.stdout.fileno(), READY)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    outlive_parent()
    birth = nursery.serve()
    if birth is not None:
        nursery.forget()
        _become_worker(birth, pid)
        _live(options.entry, birth)


if __name__ == "__main__":
    main()
