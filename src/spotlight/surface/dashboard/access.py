"""Access to the page: hosts, token, cookie, and the headers that confine what a page may load.

On loopback any user of the machine may read; elsewhere a token is needed. A token in an address is exchanged for a
cookie at once, so that it stays in no history, log or referrer. The cookie holds a value derived from the token.
Invariant: secrets are compared in constant time (tests/unit/test_dashboard_access.py).
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN = ("/healthz", "/login", "/static/")
"""Paths without a secret: they show nothing of a run."""
MONTH_S = 30 * 24 * 3600


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AccessRules:
    """Which requests may pass."""

    def __init__(self, host: str, token: str | None, refuse: Callable[[Request], Response]) -> None:
        self._hosts = {*LOOPBACK, host} if is_loopback(host) else None
        self._token = token
        self._refuse = refuse

    def answer(self, request: Request) -> Response | None:
        """The response to a request that may not pass; None if it may."""
        if self._hosts is not None and _host_of(request.headers) not in self._hosts:
            # Another name for this machine, as in DNS rebinding: a foreign page must not read runs.
            return PlainTextResponse("this address is not served; open it as localhost or 127.0.0.1.\n", 421)
        if self._token is None or request.url.path.startswith(OPEN):
            return None
        given = request.query_params.get("token")
        if given is not None and request.method == "GET":
            return self.enter(request, given)
        return None if self._is_known(request) else self._refuse(request)

    def enter(self, request: Request, given: str) -> Response:
        """Exchange a token for a cookie, and go to the same page without it."""
        if self._token is None or not _equal(given, self._token):
            return self._refuse(request)
        rest = [(name, value) for name, value in parse_qsl(request.url.query) if name != "token"]
        # One slash: two would name another host.
        path = "/" if request.url.path == "/login" else f"/{request.url.path.lstrip('/')}"
        target = f"{path}?{urlencode(rest)}" if rest else path
        response = RedirectResponse(target, 303)
        response.set_cookie(
            cookie_name(request), session_of(self._token), max_age=MONTH_S, httponly=True, samesite="strict", path="/"
        )
        return response

    def _is_known(self, request: Request) -> bool:
        assert self._token is not None
        cookie = request.cookies.get(cookie_name(request), "")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if _equal(cookie, session_of(self._token)):
            return True
        return scheme.lower() == "bearer" and _equal(bearer.strip(), self._token)


class Confined:
    """Middleware: applies the rules, and adds the headers to every response."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # An upgrade must not leave an old script in a browser: static files are checked again.
        keep = "no-cache" if scope["path"].startswith("/static/") else "no-store"

        async def confined(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "cache-control": keep}.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._rules.answer(Request(scope, receive)) or self._app)(scope, receive, confined)


def session_of(token: str) -> str:
    """Value of the cookie: derived, so that a cookie does not reveal the token."""
    return hmac.new(token.encode(), b"spotlight dashboard session", hashlib.sha256).hexdigest()


def cookie_name(request: Request) -> str:
    """Cookies are shared by all ports of a host, so the port is part of the name."""
    return f"spotlight_{request.url.port or 80}"


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode())


def _host_of(headers: Headers) -> str:
    host = headers.get("host", "")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
