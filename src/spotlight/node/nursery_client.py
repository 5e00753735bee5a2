"""An agent's connection to the nursery: requests workers and receives their exits.

`lost` is set when the nursery is gone; by then all its children are dead or being killed.
"""

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem
from spotlight.core.types import WorkerId
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

_REPLY = msgspec.msgpack.Decoder(NurseryReply)


@dataclass(frozen=True)
class Child:
    """A worker process; `exited` becomes its exit code, or minus the signal that killed it."""

    pid: int
    exited: asyncio.Future[int]


class NurseryClient:
    """One connection; the nursery's packets resolve `spawn` and `Child.exited`."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._spawning: dict[WorkerId, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self.lost = asyncio.Event()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._receive)

    @classmethod
    async def connect(cls, path: Path) -> "NurseryClient":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        return cls(sock)

    async def spawn(self, worker: WorkerId, sock: socket.socket, launch: bytes, log: Path) -> Child:
        """Start a worker that communicates over `sock`; the caller closes its own copy of `sock`."""
        spawned: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._spawning[worker] = spawned
        await self._request(Spawn(worker=worker, launch=launch, log=str(log)), [sock.fileno()])
        return await spawned

    async def keep_spare(self, device: str, log: Path) -> None:
        """Keep one spare process until the next `spawn`, where workers are not forked from imported modules."""
        await self._request(KeepSpare(device=device, log=str(log)), [])

    async def kill(self, child: Child) -> None:
        """Send SIGKILL; `child.exited` resolves when the child is gone."""
        if not child.exited.done():
            await self._request(KillChild(pid=child.pid), [])

    async def _request(self, request: NurseryRequest, descriptors: list[int]) -> None:
        packet = _packet(request)
        while not self.lost.is_set():
            try:
                socket.send_fds(self._socket, [packet], descriptors)
                return
            except BlockingIOError:
                await self._writable()
            except ConnectionError:
                return  # the reader sets `lost`

    async def _writable(self) -> None:
        """Wait until the socket is writable, after the nursery has read."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._socket.fileno(), ready.set_result, None)
        try:
            await ready
        finally:
            loop.remove_writer(self._socket.fileno())

    def _receive(self) -> None:
        try:
            packet = self._socket.recv(PACKET_LIMIT)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self.lost.set()
            return
        match _REPLY.decode(packet):
            case Spawned(worker=worker, pid=pid):
                child = self._children[pid] = Child(pid, asyncio.get_running_loop().create_future())
                self._spawning.pop(worker).set_result(child)
            case Unborn(worker=worker, problem=problem):
                error = EnvironmentProblem(f"worker {worker} was not started: {problem}")
                self._spawning.pop(worker).set_exception(error)
            case Exited(pid=pid, status=status):
                self._children.pop(pid).exited.set_result(status)


def _packet(request: NurseryRequest) -> bytes:
    packet = msgspec.msgpack.encode(request)
    if len(packet) > PACKET_LIMIT:
        raise EnvironmentProblem(
            f"the settings of a worker have {len(packet)} bytes, but a packet to the nursery has at most "
            f"{PACKET_LIMIT}; put large settings into a file and pass its path."
        )
    return packet
