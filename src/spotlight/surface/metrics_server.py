"""`spotlight train --metrics-port`: /metrics of a live run on the loopback interface, in the controller's event loop.

One request per connection, small and bounded: a client that sends nothing or too much is dropped, and never delays the
run. Prometheus on another machine reaches it through a tunnel or an agent on this one.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from spotlight.core.errors import EnvironmentProblem
from spotlight.surface.metrics import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
REQUEST_S = 5.0
REQUEST_BYTES = 8192
CLIENTS = 16
"""Connections at a time; more are dropped."""


class MetricsServer:
    """Takes its port at once, so that one in use is an error before anything is written; serves while `serve` runs."""

    def __init__(self, port: int) -> None:
        self.text: Callable[[], str] = lambda: ""
        """Renders the metrics."""
        self._clients = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((LOOPBACK, port))
            self._socket.listen(CLIENTS)
        except OSError as error:
            self._socket.close()
            raise EnvironmentProblem(
                f"--metrics-port is {port}, but that port of {LOOPBACK} cannot be used ({error.strerror}); free it, or "
                "name another, or 0 for any."
            ) from error

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}/metrics"

    async def serve(self, note: Callable[[str, str], None]) -> None:
        """Serve until cancelled; a server that fails is a problem of the run, not its end."""
        try:
            server = await asyncio.start_server(self._client, sock=self._socket, limit=REQUEST_BYTES)
            async with server:
                await server.serve_forever()
        except OSError as error:
            note("metrics", f"{self.url} is not served any more ({error}); the run goes on without it.")

    def close(self) -> None:
        self._socket.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._clients < CLIENTS:
                self._clients += 1
                try:
                    await asyncio.wait_for(self._answer(reader, writer), REQUEST_S)
                finally:
                    self._clients -= 1
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            with suppress(OSError):
                writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        answer = partial(_response, is_head=method == "HEAD")
        if method not in ("GET", "HEAD"):
            data = answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET\n")
        elif path.partition("?")[0] != "/metrics":
            data = answer(HTTPStatus.NOT_FOUND, "look at /metrics\n")
        else:
            data = answer(HTTPStatus.OK, self.text())
        writer.write(data)
        await writer.drain()


def _response(status: HTTPStatus, text: str, is_head: bool) -> bytes:
    body = text.encode()
    kind = CONTENT_TYPE if status is HTTPStatus.OK else "text/plain; charset=utf-8"
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff", "Cache-Control: no-store", "Connection: close",
    ]  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else body)
