"""The live page beside runs that go on: recorded journals replayed fast, a real run, and a day of 64 slots."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from growing_run import GrowingRun, wait, wait_for_drawing, wait_for_position
from live_run import LiveRun
from recorded_folder import rough_story
from shown_numbers import numbers_in, words_of
from story_journal import story

from spotlight.core.events import Evaluated, WorkerLost
from spotlight.core.work import SlotClass
from spotlight.surface.html.fragments import PANELS

pytestmark = pytest.mark.slow


def numbers_of(words: dict[str, str]) -> dict[str, list[str]]:
    return {panel: numbers_in(words[panel]) for panel in PANELS}


@pytest.mark.parametrize("records", [story(iterations=24), rough_story()], ids=["long", "rough"])
def test_page_that_follows_a_replayed_journal_ends_as_one_that_is_opened_afterwards(
    watched, tmp_path, make_server, records
):
    run = GrowingRun(tmp_path / "runs/replayed", records, 8)
    server = make_server(tmp_path / "runs")
    seen = watched(f"{server.address}/runs/replayed")
    wait(seen.page, "document.querySelector('[data-link]').dataset.state === 'live'")
    while run.written < len(records):
        run.grow(120)
        wait_for_position(seen.page, run.written - 1)
    wait_for_drawing(seen.page)
    fresh = watched(f"{server.address}/runs/replayed")
    wait_for_drawing(fresh.page)
    assert words_of(seen.page.locator("main").inner_html()) == words_of(fresh.page.locator("main").inner_html())
    lines = seen.page.locator("[data-feed] li").evaluate_all("all => all.map(one => Number(one.dataset.seq))")
    assert lines == run.lines()[::-1][:200]
    assert seen.messages == []
    assert all(url.startswith(f"{server.address}/") for url in seen.requests)


@pytest.mark.timeout(900)
def test_page_of_a_real_run_follows_it_to_its_end_through_a_kill(watched, tmp_path, make_server):
    run = LiveRun(tmp_path, iterations=3)
    try:
        run.start()
        run.wait_for(lambda: (run.run / "journal").is_dir() and run.records())
        server = make_server(tmp_path / "runs")
        seen = watched(f"{server.address}/runs/run")
        run.wait_for_event(Evaluated)
        wait(seen.page, "document.querySelector('[data-panel=summary] .state').className.includes('state-running')")
        killed = run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        run.wait_for_event(WorkerLost, lambda lost: lost.worker == killed.worker)
        wait(
            seen.page,
            "worker => [...document.querySelectorAll('[data-feed] li')].some(one => one.textContent.includes(worker))",
            killed.worker,
        )
        assert run.finish() == 0
        status = run.status()
        wait_for_position(seen.page, status["seq"])
        wait(seen.page, "document.querySelector('[data-panel=summary] .state').className.includes('state-finished')")
        report = numbers_of(words_of((run.run / "report.html").read_text()))
        # The controller's last words and the audit's verdict follow the last record.
        for _ in range(100):
            shown = numbers_of(words_of(seen.page.locator("main").inner_html()))
            if shown == report:
                break
            seen.page.wait_for_timeout(100)
        assert shown == report
        assert status["losses"]["preemptions"] >= 1
        images = seen.page.locator("[data-panel=gallery] img")
        assert images.count() >= 4
        wait(seen.page, "[...document.querySelectorAll('.gallery img')].every(image => image.naturalWidth > 0)")
        assert seen.messages == []
    finally:
        run.close()


@pytest.mark.timeout(900)
def test_day_of_64_slots_is_measured(browser, record_property):
    """Frame times are reported, not asserted: they depend on the machine. The work per frame is bounded."""
    command = [sys.executable, "-m", "benchmarks.page", "--rounds", "1", "--frames", "240", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    summary = json.loads(done.stdout.splitlines()[-1])
    figures = {name: figure["value"] for name, figure in summary["figures"].items()}
    for name, value in figures.items():
        record_property(name, value)
    assert summary["records"] > 400_000
    assert figures["draw_p95_ms"] > 0
    assert figures["window_kb"] < 1000
