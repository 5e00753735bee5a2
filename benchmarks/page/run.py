"""Frames of the timeline in a headless Chromium, beside those of a small run."""

import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import uvicorn

from benchmarks.lib.figures import Figure
from benchmarks.page.long_run import write_long_run
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.folder import RunFolder
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.followed_run import FollowedRun
from spotlight.surface.dashboard.run_index import RunIndex

SMALL = (4, 10 / 60)
"""Slots and hours of the run beside it."""
WIDTH, HEIGHT, BINS = 1440, 900, 1600
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)
SCRIPT = """frames => new Promise(done => {
  const root = document.querySelector("[data-timeline]"), canvas = root.querySelector("canvas");
  canvas.focus();
  const drawn = [], gaps = [];
  root.addEventListener("spotlight:frame", event => drawn.push(event.detail));
  let last = performance.now(), number = 0;
  const step = now => {
    gaps.push(now - last);
    last = now;
    if (number++ === frames) { done({ drawn, gaps: gaps.slice(1) }); return; }
    const phase = number % 120, middle = canvas.clientWidth / 2;
    const wheel = (x, y) => canvas.dispatchEvent(new WheelEvent("wheel",
      { deltaX: x, deltaY: y, clientX: canvas.getBoundingClientRect().left + middle, cancelable: true }));
    if (phase < 50) wheel(0, -60); else if (phase < 70) wheel(40, 0); else wheel(0, 60);
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""
"""Zooms in, moves, and zooms out, one event per frame."""
MS = "ms"


class Round(NamedTuple):
    """Milliseconds of one round."""

    drawn: list[float]
    gaps: list[float]


def measure(slots: int, hours: float, frames: int, rounds: int) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figures of the large run and of the small one, and the facts of both."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise EnvironmentProblem("there is no Chromium on the path; install it with the system's packages.")
    with TemporaryDirectory(prefix="page-") as folder:
        runs = Path(folder) / "runs"
        records = write_long_run(runs / "large", slots, hours, seed=0)
        write_long_run(runs / "small", *SMALL, seed=0)
        window_s, window_bytes = _windows(runs / "large", hours * 3600)
        with _served(runs) as address:
            found = {name: _rounds(chromium, f"{address}/runs/{name}", frames, rounds) for name in ("large", "small")}
    large, small = found["large"], found["small"]
    figures = {
        "frame_vs_small": Figure.median(
            [_p95(a.drawn) / _p95(b.drawn) for a, b in zip(large, small, strict=True)],
            "times a small run's, p95 of drawing",
        ),
        "draw_p50_ms": Figure.median([statistics.median(each.drawn) for each in large], f"{MS} to draw a frame, p50"),
        "draw_p95_ms": Figure.median([_p95(each.drawn) for each in large], f"{MS} to draw a frame, p95"),
        "frame_p50_ms": Figure.median(
            [statistics.median(each.gaps) for each in large], f"{MS} from frame to frame, p50"
        ),
        "frame_p95_ms": Figure.median([_p95(each.gaps) for each in large], f"{MS} from frame to frame, p95"),
        "small_frame_p95_ms": Figure.median(
            [_p95(each.gaps) for each in small], f"{MS} from frame to frame, small run, p95"
        ),
        "window_cpu_ms": Figure.median(
            [1000 * each for each in window_s], f"{MS} of the server's processor time per window"
        ),
        "window_kb": Figure.single(window_bytes / 1000, "kB of JSON of the whole run's window"),
    }
    return figures, {"slots": slots, "hours": hours, "records": records, "frames": frames}


def _windows(folder: Path, until: float) -> tuple[list[float], int]:
    """Processor seconds of windows at several zooms, and the bytes of the widest."""
    run = FollowedRun(RunFolder(folder), PriceTable.load(), "large")
    widest = len(run.window(0.0, until, BINS))
    spent = []
    for zoom in (1.0, 0.5, 0.1, 0.01):
        began = time.process_time()
        run.window(0.3 * until, 0.3 * until + zoom * 0.7 * until, BINS)
        spent.append(time.process_time() - began)
    return spent, widest


@contextmanager
def _served(runs: Path) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(dashboard_app(RunIndex(runs, PriceTable.load())), port=0, log_level="warning", access_log=False)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def _rounds(chromium: str, address: str, frames: int, rounds: int) -> list[Round]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        page.goto(address, timeout=300_000)
        while not page.evaluate("document.querySelector('[data-timeline]')?.dataset.ownSeq"):
            page.wait_for_timeout(100)
        page.locator(".timeline-canvas").scroll_into_view_if_needed()
        found = [Round(**page.evaluate(SCRIPT, frames)) for _ in range(rounds)]
        browser.close()
    return found


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]
