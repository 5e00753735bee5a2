"""A small HTTP client for metadata services: plain HTTP, one request per connection, every read bounded.

It ignores proxies and follows no redirects: a metadata service is one hop away, and another host's reply is not its.
Cancellation closes the connection at once, which a blocking client in a thread could not do.
"""

import asyncio
from urllib.parse import urlsplit

import msgspec

from spotlight.core.clock import Clock
from spotlight.node.notices.notice import SourceFailed

LINK_LOCAL = "http://169.254.169.254"
"""Metadata service of AWS, GCP and Azure; GCP's name for it would need a resolver, which may hang."""
REQUEST_S = 2.0
"""Time limit of a request; a service one hop away replies within milliseconds."""
HEAD_MOST = 16 * 1024
BODY_MOST = 256 * 1024
"""Bytes; Azure's events of a large placement group take tens of KiB."""


class NoReply(SourceFailed):
    """A request was not answered in time."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A complete reply, with both clocks at the arrival of its headers."""

    status: int
    headers: dict[str, str]
    """By name in lower case."""
    body: bytes = b""
    now: float
    wall: float
    took_s: float
    """Seconds from the request to the arrival of the headers."""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace").strip()


class MetadataClient:
    """Sends requests to one metadata service."""

    def __init__(self, clock: Clock, url: str = LINK_LOCAL, limit_s: float = REQUEST_S) -> None:
        """`url` is http://host[:port]; paths of requests follow it. `limit_s` is the time limit of a request."""
        parts = urlsplit(url)
        self.url = url.rstrip("/")
        self.clock = clock
        self.limit_s = limit_s
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._prefix = parts.path.rstrip("/")
        self._authority = parts.netloc

    async def get(self, path: str, headers: dict[str, str], wait_s: float = 0.0) -> Reply:
        """Reply to a GET for which the server may wait `wait_s` more than the time limit."""
        return await self._request("GET", path, headers, limit_s=self.limit_s + wait_s)

    async def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Reply:
        return await self._request(method, path, headers, body, self.limit_s)

    async def _request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b"", limit_s: float = REQUEST_S
    ) -> Reply:
        """Return the reply, whatever its status; raises NoReply after `limit_s` and SourceFailed on other problems."""
        try:
            async with asyncio.timeout(limit_s):
                return await self._exchange(_head(method, self._prefix + path, self._authority, headers, body), body)
        except TimeoutError:
            raise NoReply(f"{method} {self.url}{path} was not answered within {limit_s:g} s") from None
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            problem = str(error) or type(error).__name__
            raise SourceFailed(f"{method} {self.url}{path} failed: {problem}") from error

    async def _exchange(self, head: bytes, body: bytes) -> Reply:
        started = self.clock.now()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=HEAD_MOST)
        try:
            writer.write(head + body)
            status, headers = _parsed(await reader.readuntil(b"\r\n\r\n"))
            now, wall = self.clock.now(), self.clock.wall()
            content = await _body(reader, headers)
            return Reply(status=status, headers=headers, body=content, now=now, wall=wall, took_s=now - started)
        finally:
            writer.close()


def _head(method: str, target: str, authority: str, headers: dict[str, str], body: bytes) -> bytes:
    fields = {"Host": authority, "Connection": "close", "Accept": "*/*", **headers}
    if body or method != "GET":
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    if any(character in line for line in lines for character in "\r\n"):
        raise ValueError(f"a header of {method} {target} contains a line break")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers of a reply."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isascii() or not status.isdigit():
        raise ValueError(f"the reply starts with {first[:40]!r}, which is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(status), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _chunked(reader)
    if "content-length" in headers:
        return await reader.readexactly(_size(headers["content-length"], 10))
    content = b""
    while piece := await reader.read(HEAD_MOST):
        content += piece
        _check(len(content))
    return content


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := _size((await reader.readuntil(b"\r\n")).decode("latin-1").partition(";")[0].strip(), 16):
        _check(len(content) + size)
        content += await reader.readexactly(size)
        await reader.readexactly(2)
    return content


def _size(text: str, base: int) -> int:
    size = int(text, base)
    if size < 0:
        raise ValueError(f"the reply has a size of {size} bytes")
    _check(size)
    return size


def _check(size: int) -> None:
    if size > BODY_MOST:
        raise ValueError(f"the reply has {size} bytes, more than {BODY_MOST}")
