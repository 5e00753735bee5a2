"""Requests to an ASGI application in this process, without a server."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(app, address: str, method: str = "GET", body: bytes = b"", most: int = 1 << 30, **headers: str) -> Reply:
    """The reply, cut after `most` bytes of a stream; names of headers have _ instead of -."""
    return asyncio.run(_request(app, address, method, body, most, headers))


async def _request(app, address: str, method: str, body: bytes, most: int, headers: Mapping[str, str]) -> Reply:
    path, _, query = address.partition("?")
    given = {"host": "127.0.0.1:8420", "accept": "text/html", **{k.replace("_", "-"): v for k, v in headers.items()}}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8420),
    }
    sent: list[dict[str, Any]] = []
    ended = asyncio.Event()
    inbox = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if inbox:
            return inbox.pop()
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if sum(len(each.get("body", b"")) for each in sent) >= most:
            ended.set()
            raise OSError("the client has gone")

    with contextlib.suppress(OSError):
        await asyncio.wait_for(app(scope, receive, send), 30)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    headers = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    return Reply(start["status"], headers, content)
