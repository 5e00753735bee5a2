"""Starts the server of the live page and prints its address."""

import contextlib
import json
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.surface.dashboard.access import is_loopback
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex

GRACE_S = 1
"""Seconds that open streams have to end when the server stops; browsers connect again by themselves."""
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
    token = None if is_loopback(host) and token is None else token or secrets.token_urlsafe(24)
    with _listening(host, port) as bound:
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
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(settings).run(sockets=[bound])


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
