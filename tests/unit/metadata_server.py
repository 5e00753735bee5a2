"""The fake metadata service with faults, and with waits for what its clients do.

`faults` holds the replies to the next requests; each is used once, by the first request that its path matches.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.notices.cloud_server import ACTION as ACTION
from benchmarks.notices.cloud_server import CLOUDS as CLOUDS
from benchmarks.notices.cloud_server import EVENTS as EVENTS
from benchmarks.notices.cloud_server import MAINTENANCE as MAINTENANCE
from benchmarks.notices.cloud_server import NAME as NAME
from benchmarks.notices.cloud_server import PREEMPTED as PREEMPTED
from benchmarks.notices.cloud_server import REBALANCE as REBALANCE
from benchmarks.notices.cloud_server import TOKEN as TOKEN
from benchmarks.notices.cloud_server import CloudServer, Exchange, Reply


@dataclass
class MetadataServer(CloudServer):
    faults: list[tuple[str, Reply]] = field(default_factory=list)

    def recommend(self) -> None:
        self.rebalance = {"noticeTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.wall()))}

    def expire_tokens(self) -> None:
        self._tokens.clear()

    def fail(self, fault: Reply, times: int = 1, path: str = "") -> None:
        """Reply with `fault` to the next requests whose path and query contain `path`."""
        self.faults += [(path, fault)] * times

    def statuses(self, path: str) -> list[int]:
        """Of the replies to requests of this path."""
        return [exchange.status for exchange in self.requests if exchange.path == path and exchange.status]

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until it is so, looked at before and after every request."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(is_so), 20)

    async def replied(self, path: str, more: int = 3) -> None:
        """Wait for so many more replies to requests of this path."""
        enough = len(self.statuses(path)) + more
        await self.until(lambda: len(self.statuses(path)) >= enough)

    def chosen(self, exchange: Exchange) -> Reply:
        for number, (path, fault) in enumerate(self.faults):
            if path in f"{exchange.path}?{'&'.join(exchange.query)}":
                del self.faults[number]
                return fault
        return super().chosen(exchange)


# -- faults ------------------------------------------------------------------------------------------------------------


def status(code: int) -> Reply:
    async def fault(exchange: Exchange) -> None:
        await exchange.reply(code, "sorry")

    return fault


def content(body: bytes) -> Reply:
    async def fault(exchange: Exchange) -> None:
        await exchange.reply(200, body, Metadata_Flavor="Google")

    return fault


def raw(data: bytes) -> Reply:
    """These bytes, which need not be HTTP, and the end of the connection."""

    async def fault(exchange: Exchange) -> None:
        await exchange.write(data)

    return fault


async def reset(exchange: Exchange) -> None:
    exchange.writer.transport.abort()


async def hang(exchange: Exchange) -> None:
    await asyncio.Event().wait()


def slow(body: bytes, pause_s: float) -> Reply:
    """The headers at once, then a byte per pause."""

    async def fault(exchange: Exchange) -> None:
        await exchange.write(exchange.head(200, len(body), Metadata_Flavor="Google"))
        for byte in body:
            await asyncio.sleep(pause_s)
            await exchange.write(bytes([byte]))

    return fault


def chunked(*pieces: bytes) -> Reply:
    async def fault(exchange: Exchange) -> None:
        await exchange.write(exchange.head(200, None, Transfer_Encoding="chunked", Metadata_Flavor="Google"))
        for piece in (*pieces, b""):
            await exchange.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    return fault
