"""Starts the server of the live page and prints its address."""

import contextlib
import json
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.surface.dashboard.access import is_loopback
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex

GRACE_S = 1
"""Seconds that open streams have to end when the server stops; browsers connect again by themselves."""
BACKLOG = 256
TRIES = 20
"""Ports that are tried from the default one on."""


def serve(
    place: Path,
    prices: PriceTable,
    host: str,
    port: int | None,
    token: str | None,
    announce: Callable[[str, str | None], None],
    is_opened: bool = False,
) -> None:
    """Serve until the process is interrupted; `announce` receives the address and the token."""
    token = token_for(host, token)
    with _listening(host, port) as bound, contextlib.suppress(KeyboardInterrupt):
        number = bound.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{number}/"
        opened = address if token is None else f"{address}?token={token}"
        announce(opened, token)
        app = dashboard_app(RunIndex(place, prices), host, token)
        # Without an access log: addresses may hold a token.
        settings = uvicorn.Config(
            app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE_S, server_header=False
        )
        if is_opened:
            webbrowser.open(opened)
        _PageServer(settings, app.state.close).run(sockets=[bound])


def token_for(host: str, given: str | None) -> str | None:
    """The given token; on this machine alone none is needed, elsewhere a new one is made."""
    return given or (None if is_loopback(host) else secrets.token_urlsafe(24))


class _PageServer(uvicorn.Server):
    """Ends the streams of browsers first: the server waits for open connections."""

    def __init__(self, settings: uvicorn.Config, close: Callable[[], None]) -> None:
        super().__init__(settings)
        self._close = close

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._close()
        super().handle_exit(sig, frame)


def as_line(address: str, token: str | None) -> str:
    return json.dumps({"address": address, "token": token})


def _listening(host: str, port: int | None) -> socket.socket:
    """A socket at the port; without one, at the first free port from the default on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + TRIES), 0]
    problem: OSError | None = None
    for number in tried:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            # Before the address is printed: a client that connects at once waits until the server runs.
            bound.listen(BACKLOG)
        except OSError as error:
            bound.close()
            problem = error
            continue
        return bound
    raise EnvironmentProblem(
        f"the page cannot listen at {host}:{port} ({problem.strerror if problem else 'none is free'}); choose another "
        "--port or --host."
    )


DEFAULT_PORT = 8420
