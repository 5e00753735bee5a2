"""A fake metadata service that speaks AWS's, GCP's and Azure's protocols; its user sets what it announces.

It refuses requests without the cloud's token or header, as the real ones do.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
NAME = "/metadata/instance/compute/name"
EVENTS = "/metadata/scheduledevents"
CLOUDS = ("aws", "gcp", "azure")


@dataclass
class Exchange:
    """One request, and the means to reply to it."""

    server: "CloudServer"
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    status: int = 0

    def head(self, status: int, length: int | None, **headers: str) -> bytes:
        self.status = status
        fields = {"Connection": "close", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.server.sends_date:
            fields["Date"] = formatdate(self.server.wall(), usegmt=True)
        if length is not None:
            fields["Content-Length"] = str(length)
        lines = [f"HTTP/1.1 {status} Fake", *(f"{name}: {value}" for name, value in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        body = body.encode() if isinstance(body, str) else body
        await self.write(self.head(status, len(body), **headers) + body)


Reply = Callable[[Exchange], Awaitable[None]]


@dataclass
class CloudServer:
    """Inside `async with` it listens at `url`, as the clouds that `clouds` names."""

    clouds: tuple[str, ...] = CLOUDS
    token_ttl_s: int = 21600
    skew_s: float = 0.0
    """By which the cloud's clock is ahead of this machine's."""
    sends_date: bool = True
    sends_flavor: bool = True
    machine: str = "trainer_7"
    interruption: dict[str, str] | None = None
    rebalance: dict[str, str] | None = None
    events: list[dict[str, object]] = field(default_factory=list)
    requests: list[Exchange] = field(default_factory=list)
    waiting: int = 0
    """Long polls that wait for a change."""
    port: int = 0
    """0: any free port."""
    url: str = ""

    def __post_init__(self) -> None:
        self._tokens: set[str] = set()
        self._keys = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}
        self._incarnation = 1
        self._etag = 1
        self._changed = asyncio.Condition()
        self._open: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # -- what its user sets --------------------------------------------------------------------------------------------

    def wall(self) -> float:
        return time.time() + self.skew_s

    def interrupt(self, seconds: float, action: str = "terminate") -> None:
        moment = time.gmtime(round(self.wall() + seconds))
        self.interruption = {"action": action, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", moment)}

    async def set_key(self, path: str, value: str) -> None:
        async with self._changed:
            self._keys[path] = value
            self._etag += 1
            self._changed.notify_all()

    def schedule(self, seconds: float, machine: str = "", kind: str = "Preempt", status: str = "Scheduled") -> None:
        """Add an event; one that has started has no time."""
        not_before = formatdate(self.wall() + seconds, usegmt=True) if status == "Scheduled" else ""
        self.set_events(
            *self.events,
            {
                "EventId": f"event-{self._incarnation}",
                "EventType": kind,
                "EventStatus": status,
                "ResourceType": "VirtualMachine",
                "Resources": [machine or self.machine],
                "NotBefore": not_before,
            },
        )

    def set_events(self, *events: dict[str, object]) -> None:
        self.events = list(events)
        self._incarnation += 1

    # -- the protocols -------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            exchange = await self._read(reader, writer)
            self.requests.append(exchange)
            await self._notify()
            await self.chosen(exchange)(exchange)
            await self._notify()
        except (ConnectionError, EOFError, asyncio.CancelledError):
            # Cancelled when the server closes: asyncio would log it as an error.
            pass
        finally:
            writer.close()
            self._open.discard(task)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, target, _ = first.split()
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Exchange(self, method, urlsplit(target).path, query, headers, body, writer)

    def chosen(self, exchange: Exchange) -> Reply:
        """What replies to a request."""
        if exchange.path.startswith("/latest/") and "aws" in self.clouds:
            return self._aws
        if exchange.path.startswith("/metadata/") and "azure" in self.clouds:
            return self._azure
        is_gcp = exchange.path == "/" or exchange.path.startswith("/computeMetadata/")
        return self._gcp if is_gcp and "gcp" in self.clouds else not_found

    async def _aws(self, exchange: Exchange) -> None:
        if exchange.path == TOKEN:
            await self._token(exchange)
        elif exchange.headers.get("x-aws-ec2-metadata-token") not in self._tokens:
            await exchange.reply(401)
        else:
            content = {ACTION: self.interruption, REBALANCE: self.rebalance}[exchange.path]
            await (exchange.reply(200, json.dumps(content)) if content else exchange.reply(404, "not found"))

    async def _token(self, exchange: Exchange) -> None:
        asked = exchange.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if exchange.method != "PUT" or not asked.isdigit() or not 1 <= int(asked) <= 21600:
            await exchange.reply(400)
            return
        token = f"token-{len(self.requests)}=="
        self._tokens.add(token)
        await exchange.reply(200, token, X_Aws_Ec2_Metadata_Token_Ttl_Seconds=str(self.token_ttl_s))

    async def _gcp(self, exchange: Exchange) -> None:
        if exchange.headers.get("metadata-flavor") != "Google":
            await exchange.reply(403)
            return
        if exchange.query.get("wait_for_change") == "true":
            await self._wait(exchange.query.get("last_etag", ""), float(exchange.query.get("timeout_sec", "3600")))
        flavor = {"Metadata_Flavor": "Google"} if self.sends_flavor else {}
        await exchange.reply(200, self._keys.get(exchange.path, ""), ETag=str(self._etag), **flavor)

    async def _wait(self, etag: str, seconds: float) -> None:
        async with self._changed:
            self.waiting += 1
            self._changed.notify_all()
            try:
                other = self._changed.wait_for(lambda: etag != str(self._etag))
                await asyncio.wait_for(other, seconds)
            except TimeoutError:
                pass
            finally:
                self.waiting -= 1

    async def _azure(self, exchange: Exchange) -> None:
        if exchange.headers.get("metadata") != "true" or "api-version" not in exchange.query:
            await exchange.reply(400)
        elif exchange.path == NAME:
            await exchange.reply(200, self.machine)
        elif exchange.method == "POST":
            await exchange.reply(200)
        else:
            await exchange.reply(200, json.dumps({"DocumentIncarnation": self._incarnation, "Events": self.events}))


async def not_found(exchange: Exchange) -> None:
    await exchange.reply(404)
