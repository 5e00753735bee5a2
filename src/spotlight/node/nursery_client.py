"""An agent's side of the nursery: ask for workers, hear of their ends.

`lost` is set when the nursery is gone; by then all its children are dead or dying.
"""

import asyncio
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem
from spotlight.core.types import WorkerId
from spotlight.node.nursery import PACKET_LIMIT, Asked, Exited, KillChild, Spawn, Spawned, Told, Unborn

_TOLD = msgspec.msgpack.Decoder(Told)


@dataclass(frozen=True)
class Child:
    """A worker process; `exited` becomes its exit code, or minus the signal that killed it."""

    pid: int
    exited: asyncio.Future[int]


class NurseryClient:
    """One connection. Waits for nothing but replies; whoever awaits a `Child.exited` is woken by the nursery."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._births: dict[WorkerId, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self.lost = asyncio.Event()
        asyncio.get_running_loop().add_reader(sock.fileno(), self._hear)

    @classmethod
    async def connect(cls, path: Path) -> "NurseryClient":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        return cls(sock)

    async def spawn(self, worker: WorkerId, sock: socket.socket, launch: bytes, log: Path) -> Child:
        """Fork a worker that talks over `sock`, which the caller still has to close on this side."""
        birth: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._births[worker] = birth
        await self._ask(Spawn(worker=worker, launch=launch, log=str(log)), [sock.fileno()])
        return await birth

    async def kill(self, child: Child) -> None:
        """SIGKILL; `child.exited` tells when it is gone."""
        if not child.exited.done():
            await self._ask(KillChild(pid=child.pid), [])

    async def _ask(self, asked: Asked, descriptors: list[int]) -> None:
        packet = _packet(asked)
        while not self.lost.is_set():
            try:
                socket.send_fds(self._socket, [packet], descriptors)
                return
            except BlockingIOError:
                await self._room()
            except ConnectionError:
                return  # `lost` is set next, when the end is read

    async def _room(self) -> None:
        """Waits for room in the socket; the nursery makes it by reading."""
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._socket.fileno(), ready.set_result, None)
        try:
            await ready
        finally:
            loop.remove_writer(self._socket.fileno())

    def _hear(self) -> None:
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
        match _TOLD.decode(packet):
            case Spawned(worker=worker, pid=pid):
                child = self._children[pid] = Child(pid, asyncio.get_running_loop().create_future())
                self._births.pop(worker).set_result(child)
            case Unborn(worker=worker, problem=problem):
                error = EnvironmentProblem(f"worker {worker} was not born: {problem}")
                self._births.pop(worker).set_exception(error)
            case Exited(pid=pid, status=status):
                self._children.pop(pid).exited.set_result(status)


def _packet(asked: Asked) -> bytes:
    packet = msgspec.msgpack.encode(asked)
    if len(packet) > PACKET_LIMIT:
        raise EnvironmentProblem(
            f"the settings of a worker take {len(packet)} bytes, but the nursery takes {PACKET_LIMIT} in one packet; "
            "put large ones into a file and pass its path."
        )
    return packet
