"""The report in a real browser: it fetches nothing, fits the screen, follows the colour scheme, and opens its tables.

Needs the `playwright` package and a Chromium on the path; tests/unit/test_report.py checks the page without them.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from story_journal import PROMPTS, story

from spotlight.surface.projections import RunView
from spotlight.surface.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on the path")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as driver:
        # Containers often cannot run the sandbox of Chromium; the page is a local file.
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "images").mkdir()
    for iteration in range(6):
        for group in range(len(PROMPTS)):
            Image.new("RGB", (96, 32), (40 * iteration, 120, 60)).save(folder / f"images/{iteration:04d}-{group}.png")
    write_report(RunView.of(story()), folder, folder / "report.html")
    return folder / "report.html"


def opened(browser, report: Path, width: int, scheme: str):
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.requests, page.messages = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("console", lambda message: page.messages.append(message.text))
    page.on("pageerror", lambda error: page.messages.append(str(error)))
    page.goto(report.as_uri())
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_report_fits_the_screen_and_sends_no_requests(browser, report: Path, width: int, scheme: str):
    page = opened(browser, report, width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in page.requests if not url.startswith("data:")] == [report.as_uri()]
    assert page.messages == []
    assert "rose from 0.40 to 0.67" in page.locator("h1").inner_text()


def test_report_pictures_decode_and_keep_their_pixels(browser, report: Path):
    page = opened(browser, report, 1280, "light")
    images = page.locator(".gallery img")
    assert images.count() == 2 * len(PROMPTS)
    assert page.evaluate("[...document.images].every(image => image.naturalWidth === 96)")
    assert images.first.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"


def test_report_follows_the_colour_scheme(browser, report: Path):
    def background(scheme: str) -> str:
        return opened(browser, report, 1280, scheme).evaluate("getComputedStyle(document.body).backgroundColor")

    assert background("light") != background("dark")


def test_report_timeline_is_also_a_table(browser, report: Path):
    page = opened(browser, report, 1280, "light")
    rows = page.locator("[data-panel=timeline] details:has-text('The same as a table') tbody tr")
    assert not rows.first.is_visible()
    page.get_by_text("The same as a table").click()
    assert rows.first.is_visible()
    assert rows.count() == 4
    assert page.locator(".timeline .lost").count() == 4
    assert page.locator(".timeline .lost-noticed").count() == 2
