"""Routes of the live page. Handlers only translate: reading and rendering happen in threads, shared by all clients."""

import asyncio
import math
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from spotlight.core.errors import SpotlightError
from spotlight.surface.dashboard.access import AccessRules, Confined
from spotlight.surface.dashboard.event_stream import RunStream
from spotlight.surface.dashboard.followed_run import FollowedRun
from spotlight.surface.dashboard.run_index import RunIndex
from spotlight.surface.html.templating import STATIC, rendered
from spotlight.surface.media import TYPES
from spotlight.surface.metrics import CONTENT_TYPE

OWN_STATIC = Path(__file__).with_name("static")
ORDER = (
    "damage", "summary", "problems", "timeline", "scores", "gallery", "rewards", "previews", "training", "slot_time",
    "cost", "crews", "stale", "ledger", "feed", "iterations",
)  # fmt: skip
"""Panels in the order of the page."""
SECTIONS = {
    "timeline": "Timeline", "scores": "Score", "gallery": "Pictures", "rewards": "Reward", "previews": "Exploration",
    "training": "Training", "slot_time": "Slot time", "cost": "Cost", "ledger": "Ledger", "feed": "Log",
}  # fmt: skip
LARGEST_FORM = 4096


class Dashboard:
    """Handlers over an index of runs."""

    def __init__(self, index: RunIndex, rules: AccessRules) -> None:
        self.index = index
        self._rules = rules
        self._streams: dict[str, RunStream] = {}
        index.is_used = lambda run: run in self._streams and self._streams[run].clients > 0

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        for stream in self._streams.values():
            stream.close()

    async def runs(self, request: Request) -> Response:
        if self.index.is_single:
            (run,) = self.index.paths()
            return RedirectResponse(f"/runs/{run}", 307)
        cards = await asyncio.to_thread(self.index.cards)
        return HTMLResponse(rendered("runs.html", cards=cards, place=str(self.index.place)))

    async def cards(self, request: Request) -> Response:
        cards = await asyncio.to_thread(self.index.cards)
        return HTMLResponse(rendered("cards.html", cards=cards))

    async def run(self, request: Request) -> Response:
        found = await self._found(request.path_params["run"])
        return HTMLResponse(await asyncio.to_thread(_run_page, [found], self.index.is_single))

    async def pair(self, request: Request) -> Response:
        left, right = request.path_params["left"], request.path_params["right"]
        found = [await self._found(left), await self._found(right)]
        if left == right:
            return RedirectResponse(f"/runs/{found[0].name}", 307)
        return HTMLResponse(await asyncio.to_thread(_run_page, found, self.index.is_single))

    async def events(self, request: Request) -> Response:
        run = request.path_params["run"]
        found = await self._found(run)
        stream = self._streams.get(run)
        if stream is None or stream.run is not found:
            stream = self._streams[run] = RunStream(found)
        # A browser that connects again sends the id of the last event; the first time, the page knows its position.
        after = request.headers.get("last-event-id") or request.query_params.get("after", "-1")
        headers = {"x-accel-buffering": "no"}
        events = stream.events(int(_number(after, -1, 2**53)))
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def timeline(self, request: Request) -> Response:
        found, query = await self._found(request.path_params["run"]), request.query_params
        start, end = (_number(query.get(name, "0"), 0.0, 1e12) for name in ("start", "end"))
        bins = int(_number(query.get("bins", "800"), 1, 1e6))
        return Response(await asyncio.to_thread(found.window, start, end, bins), media_type="application/json")

    async def moment(self, request: Request) -> Response:
        found, query = await self._found(request.path_params["run"]), request.query_params
        at = _number(query.get("at", "0"), 0.0, 1e12)
        return _json(await asyncio.to_thread(found.moment, query.get("row", ""), at))

    async def panels(self, request: Request) -> Response:
        found = await self._found(request.path_params["run"])
        await asyncio.to_thread(found.refresh)
        return _json(found.panels)

    async def picture(self, request: Request) -> Response:
        found = await self._found(request.path_params["run"])
        path = await asyncio.to_thread(found.picture, request.path_params["path"])
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, media_type=TYPES[Path(path).suffix], headers={"cache-control": "private, no-cache"})

    async def report(self, request: Request) -> Response:
        """The report as a download: its own policy is in the file."""
        found = await self._found(request.path_params["run"])
        page = await asyncio.to_thread(found.report)
        return HTMLResponse(page, headers={"content-disposition": 'attachment; filename="report.html"'})

    async def login(self, request: Request) -> Response:
        if request.method == "GET":
            return login_page(request)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_FORM:
                raise HTTPException(413)
        (given,) = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[:1]
        return self._rules.enter(request, given.strip())

    async def health(self, request: Request) -> Response:
        return Response("ok\n", media_type="text/plain")

    async def metrics(self, request: Request) -> Response:
        """Live and recent runs in the format of Prometheus."""
        text = await asyncio.to_thread(self.index.metrics)
        return Response(text, media_type=CONTENT_TYPE)

    async def _found(self, run: str) -> FollowedRun:
        try:
            found = await asyncio.to_thread(self.index.find, run)
        except (SpotlightError, OSError, KeyError) as error:
            raise HTTPException(409, str(error)) from error
        if found is None:
            raise HTTPException(404, "There is no such run; it may have been moved or deleted.")
        return found


def dashboard_app(index: RunIndex, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application; a token is needed unless the host is this machine alone."""
    rules = AccessRules(host, token, login_page)
    board = Dashboard(index, rules)
    routes = [
        Route("/", board.runs),
        Route("/cards", board.cards),
        Route("/runs/{run}", board.run),
        Route("/runs/{run}/events", board.events),
        Route("/runs/{run}/timeline", board.timeline),
        Route("/runs/{run}/moment", board.moment),
        Route("/runs/{run}/panels", board.panels),
        Route("/runs/{run}/report", board.report),
        Route("/runs/{run}/media/{path:path}", board.picture),
        Route("/pair/{left}/{right}", board.pair),
        Route("/login", board.login, methods=["GET", "POST"]),
        Route("/healthz", board.health),
        Route("/metrics", board.metrics),
        Mount("/static/panels", StaticFiles(directory=STATIC)),
        Mount("/static", StaticFiles(directory=OWN_STATIC)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Confined, rules=rules)],
        exception_handlers={HTTPException: _problem_page, Exception: _defect_page},
    )
    app.state.close = board.close
    return app


def login_page(request: Request) -> Response:
    """Asks for the token; machines get a short text."""
    if "text/html" not in request.headers.get("accept", ""):
        return Response("a token is needed: open the address that `spotlight dashboard` printed.\n", 401)
    is_wrong = request.method == "POST" or "token" in request.query_params
    return HTMLResponse(rendered("login.html", is_wrong=is_wrong), 401)


def _run_page(found: list[FollowedRun], is_single: bool) -> str:
    columns = []
    for run in found:
        run.refresh()
        seq, at, fragments = run.page()
        columns.append({"id": run.name, "name": run.folder.name, "seq": seq, "at": at, "fragments": fragments})
    return rendered("page.html", columns=columns, order=ORDER, sections=SECTIONS, is_single=is_single)


async def _problem_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if "text/html" not in request.headers.get("accept", ""):
        return Response(f"{error.detail}\n", error.status_code, headers=error.headers)
    page = rendered("problem.html", status=error.status_code, detail=error.detail)
    return HTMLResponse(page, error.status_code, headers=error.headers)


async def _defect_page(request: Request, error: Exception) -> Response:
    return Response("the page met a defect of Spotlight; the terminal that serves it has the trace.\n", 500)


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, "A number is expected here.")
    return min(max(value, low), high)


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")
