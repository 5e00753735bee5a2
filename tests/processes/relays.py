"""TCP relays between machines and a run: frozen, as a network that loses all packets, or breaking their connections."""

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine

KINDS = ("cut", "reset", "delay", "half-open")
WEIGHTS = (6, 6, 3, 1)
PAUSE_S = 0.12
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset and drops what is unsent."""


class Relay:
    """Forwards one port to another, in a thread of its own."""

    def __init__(self, target: Callable[[], tuple[str, int]], host: str = "127.0.0.1", port: int = 0) -> None:
        """`target` is asked for at each connection: what listens there may start later than the relay."""
        self._target = target
        self._open: list[_Pair] = []
        self.counts: Counter[str] = Counter()
        """Broken connections by kind."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = self._call(self._start(host, port))

    def freeze(self) -> None:
        """Keep all bytes and all new connections until `thaw`."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def disturb(self, faults: int, seed: int) -> None:
        """Break this many connections, one after the other; returns at once."""
        asyncio.run_coroutine_threadsafe(self._disturb(faults, random.Random(seed)), self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[None, None, int]) -> int:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _start(self, host: str, port: int) -> int:
        server = await asyncio.start_server(self._serve, host, port)
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            theirs, ours = await asyncio.open_connection(*self._target())
        except OSError:
            writer.close()
            return
        pair = _Pair((writer, ours), self._flows)
        self._open.append(pair)
        await asyncio.wait([asyncio.create_task(pair.copy(*way)) for way in ((reader, ours), (theirs, writer))])
        self._open.remove(pair)

    async def _disturb(self, faults: int, drawn: random.Random) -> None:
        while self.counts.total() < faults:
            await asyncio.sleep(drawn.expovariate(1 / PAUSE_S))
            living = [pair for pair in self._open if not pair.is_broken]
            if not living:
                continue
            pair, kind = drawn.choice(living), drawn.choices(KINDS, WEIGHTS)[0]
            self.counts[kind] += 1
            match kind:
                case "cut":
                    pair.close()
                case "reset":
                    pair.reset()
                case "half-open":
                    pair.is_broken = True
                case "delay":
                    pair.delay_s = drawn.uniform(0.05, 0.5)


class _Pair:
    """Both connections of one client."""

    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter], flows: asyncio.Event) -> None:
        self._writers = writers
        self._flows = flows
        self.is_broken = False
        """Bytes are swallowed, and neither end is told."""
        self.delay_s = 0.0

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                delay_s, self.delay_s = self.delay_s, 0.0
                await asyncio.sleep(delay_s)
                await self._flows.wait()
                if not self.is_broken:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
        await self._flows.wait()
        if not self.is_broken:
            self.close()

    def close(self) -> None:
        self.is_broken = True
        for writer in self._writers:
            writer.close()

    def reset(self) -> None:
        self.is_broken = True
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()
