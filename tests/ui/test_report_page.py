"""The report in a real browser: it fetches nothing, fits the screen, follows the colour scheme, opens its tables."""

from pathlib import Path

import pytest
from PIL import Image
from story_journal import PROMPTS, story

from spotlight.surface.projections import RunView
from spotlight.surface.report import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "images").mkdir()
    for iteration in range(6):
        for group in range(len(PROMPTS)):
            Image.new("RGB", (96, 32), (40 * iteration, 120, 60)).save(folder / f"images/{iteration:04d}-{group}.png")
    write_report(RunView.of(story()), folder, folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1440, "dark")])
def test_report_fits_the_screen_and_sends_no_requests(watched, report: Path, width: int, scheme: str):
    seen = watched(report.as_uri(), width=width, scheme=scheme)
    assert seen.fits()
    assert [url for url in seen.requests if not url.startswith("data:")] == [report.as_uri()]
    assert seen.messages == []
    assert "rose from 0.40 to 0.67" in seen.page.locator("h1").inner_text()
    dark = "rgb(15, 20, 25)"
    assert (seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == dark) == (scheme == "dark")


def test_report_pictures_decode_and_its_timeline_is_also_a_table(watched, report: Path):
    page = watched(report.as_uri()).page
    images = page.locator(".gallery img")
    assert images.count() == 2 * len(PROMPTS)
    assert page.evaluate("[...document.images].every(image => image.naturalWidth === 96)")
    assert images.first.evaluate("image => getComputedStyle(image).imageRendering") == "pixelated"
    table = page.locator("[data-panel=timeline] tbody tr")
    assert not table.first.is_visible()
    page.get_by_text("The same as a table").click()
    assert table.first.is_visible()
    assert table.count() == 4
    assert page.locator(".timeline .lost").count() == 4
    assert page.locator(".timeline .lost-noticed").count() == 2


@pytest.mark.slow
def test_report_runs_no_script_even_if_one_were_in_it(watched, report: Path, tmp_path: Path):
    evil = tmp_path / "evil.html"
    evil.write_text(report.read_text().replace("</main>", "<script>document.title = 'changed'</script></main>"))
    assert "changed" not in watched(evil.as_uri()).page.title()
