"""A real run whose agents reach the controller over TCP through a proxy that breaks their connections.

    python proxied_run.py FAULTS SEED train recipe.yaml ...

The proxy cuts, resets, half-opens and delays connections until it has done so FAULTS times, and writes the count of
each to `faults.json` of the working folder.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from spotlight.controller.door import Door
from spotlight.pools.local import LocalPool
from spotlight.surface.cli.main import main

KINDS = ("cut", "reset", "delay", "half-open")
WEIGHTS = (6, 6, 3, 1)
PAUSE_S = 0.12
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends a reset and drops what is unsent."""


class Proxy:
    """Forwards bytes between the agents' port and the controller's."""

    def __init__(self, target: int, faults: int, seed: int) -> None:
        self._target = target
        self._faults = faults
        self._drawn = random.Random(seed)
        self._open: list[Pair] = []
        self.counts: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._task = asyncio.create_task(self._disturb())
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self._target)
        pair = Pair((writer, ours))
        self._open.append(pair)
        await asyncio.wait([asyncio.create_task(pair.copy(*way)) for way in ((reader, ours), (theirs, writer))])
        self._open.remove(pair)

    async def _disturb(self) -> None:
        while sum(self.counts.values()) < self._faults:
            await asyncio.sleep(self._drawn.expovariate(1 / PAUSE_S))
            living = [pair for pair in self._open if not pair.is_broken]
            if not living:
                continue
            pair = self._drawn.choice(living)
            kind = self._drawn.choices(KINDS, WEIGHTS)[0]
            self.counts[kind] += 1
            Path("faults.json").write_text(json.dumps(self.counts))
            match kind:
                case "cut":
                    pair.close()
                case "reset":
                    pair.reset()
                case "half-open":
                    pair.is_broken = True
                case "delay":
                    pair.delay_s = self._drawn.uniform(0.05, 0.5)


class Pair:
    """Both connections of one agent."""

    def __init__(self, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self._writers = writers
        self.is_broken = False
        """Bytes are swallowed, and neither end is told."""
        self.delay_s = 0.0

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                delay_s, self.delay_s = self.delay_s, 0.0
                await asyncio.sleep(delay_s)
                if not self.is_broken:
                    writer.write(data)
                    await writer.drain()
        except ConnectionError:
            pass
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


async def _open(self: Door, path: Path, hub: Any) -> None:
    global agents_port
    proxy = Proxy(await self.listen("127.0.0.1", 0, hub), FAULTS, SEED)
    agents_port = await proxy.start()


def _launch_of(self: LocalPool, spec: Any, node: Any, plain: Any = LocalPool.launch_of) -> Any:
    return msgspec.structs.replace(plain(self, spec, node), controller=f"127.0.0.1:{agents_port}")


if __name__ == "__main__":
    FAULTS, SEED = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    agents_port = 0
    Door.open = _open  # type: ignore[method-assign]
    LocalPool.launch_of = _launch_of  # type: ignore[method-assign]
    main()
