"""One Chromium per file and one server of the live page for all browser tests.

Without the `playwright` package or a Chromium the tests are skipped; under CI=true they fail, because there they must
run. `make setup` installs both where it may.
"""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    # Containers often cannot run the sandbox of Chromium; the pages are our own.
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip
PATIENCE_S = 60.0


def missing(what: str) -> None:
    sentence = f"{what} is not installed; `make setup` installs it where it may."
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Per file, because Playwright's event loop must not run during tests that start their own."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the playwright package")
    if CHROMIUM is None:
        missing("a Chromium")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


class WatchedPage:
    """A page that records requests, messages and errors."""

    def __init__(self, browser, width: int = 1280, scheme: str = "light", height: int = 900) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))

    def open(self, address: str) -> "WatchedPage":
        self.page.goto(address)
        return self

    def fits(self) -> bool:
        """Whether nothing is wider than the screen."""
        return self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def watched(browser) -> Iterator:
    """Opens pages, and closes them after the test."""
    pages: list[WatchedPage] = []

    def opened(address: str, **options) -> WatchedPage:
        pages.append(WatchedPage(browser, **options))
        return pages[-1].open(address)

    yield opened
    for page in pages:
        page.close()


class PageServer:
    """`spotlight dashboard` in a process of its own, which can be killed and started again at its port."""

    def __init__(self, runs: Path, port: int = 0) -> None:
        self._runs, self._port = runs, port
        self._process: subprocess.Popen[str] | None = None
        self.address = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "spotlight.surface.cli.main", "dashboard", str(self._runs), "--port"]
        self._process = subprocess.Popen([*command, str(self._port)], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1].rstrip("/")
        self._port = int(self.address.rpartition(":")[2])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.address}/healthz", timeout=5).read()
                return
            except OSError:
                time.sleep(0.05)
        raise TimeoutError("the page's server does not answer")

    def kill(self) -> None:
        """As a crash: no stream is ended in order."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(20)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recorded runs that tests only read."""
    from recorded_folder import recorded_folder, rough_story
    from story_journal import story

    folder = tmp_path_factory.mktemp("pages") / "runs"
    recorded_folder(folder / "finished", story())
    recorded_folder(folder / "rough", rough_story())
    return folder


@pytest.fixture(scope="session")
def server(runs_folder: Path) -> Iterator[PageServer]:
    started = PageServer(runs_folder)
    yield started
    started.stop()


@pytest.fixture
def make_server() -> Iterator:
    """Starts servers that a test may kill."""
    started: list[PageServer] = []

    def make(runs: Path) -> PageServer:
        started.append(PageServer(runs))
        return started[-1]

    yield make
    for one in started:
        one.stop()
