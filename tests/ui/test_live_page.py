"""The live page in a real browser: numbers of the journal, updates without a gap, and a view that survives a reload."""

import json
import re

import pytest
from growing_run import GrowingRun, wait, wait_for_drawing, wait_for_position
from shown_numbers import numbers_in, words_of
from story_journal import story

from spotlight.surface.html.fragments import PANELS


def test_every_panel_shows_the_journals_numbers_and_the_page_asks_only_its_host(watched, server):
    seen = watched(f"{server.address}/runs/finished")
    page = seen.page
    wait_for_drawing(page)
    wait(page, "document.querySelectorAll('.plot canvas').length === document.querySelectorAll('[data-chart]').length")
    shown = words_of(page.locator("main").inner_html())
    panels = page.request.get(f"{server.address}/runs/finished/panels").json()
    assert set(PANELS) <= set(shown)
    for panel, wanted in {
        "summary": ["0.67", "0.40", "80", f"{panels['summary']['dollars']:.3f}", "4"],
        "scores": ["0.40", "0.48", "0.67"],
        "rewards": [f"{panels['rewards']['charts'][0]['lines'][0]['values'][-1]:.2f}"],
        "previews": [str(panels["previews"]["finished"]), str(panels["previews"]["discarded"])],
        "timeline": [str(panels["timeline"]["losses"]["preemptions"]), str(panels["timeline"]["notices"])],
        "cost": [f"{panels['cost']['all_reserved']:.3f}", f"{panels['cost']['reserved_only']:.3f}"],
        "slot_time": [f"{one['hours']:,.3f}" for one in panels["slot_time"]["tenures"]],
        "ledger": ["80", str(panels["ledger"]["samples"]["steps_redone"]["lost"])],
        "training": ["0.2", "0.25"],
        "gallery": [str(panels["gallery"]["versions"][-1])],
        "iterations": [str(panels["iterations"]["done"])],
    }.items():
        assert set(wanted) <= set(numbers_in(shown[panel])), panel
    assert all(url.startswith(f"{server.address}/") for url in seen.requests)
    assert seen.messages == []


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "dark"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((390, "light"), (1440, "dark")))],
)
def test_pages_fit_the_screen_without_errors(watched, server, width, scheme):
    for address in ("/", "/runs/rough", "/pair/finished/rough"):
        seen = watched(f"{server.address}{address}", width=width, scheme=scheme)
        if address != "/":
            wait_for_drawing(seen.page)
        assert seen.fits(), address
        assert seen.messages == []


def test_server_that_is_killed_in_mid_stream_and_restarted_leaves_no_gap(watched, tmp_path, make_server):
    records = story(iterations=6)
    run = GrowingRun(tmp_path / "runs/live", records, 40)
    server = make_server(tmp_path / "runs")
    seen = watched(f"{server.address}/runs/live")
    page = seen.page
    wait_for_drawing(page)
    run.grow(60)
    wait_for_position(page, 99)
    page.evaluate("document.body.dataset.mark = 'kept'")
    server.kill()
    wait(page, "document.querySelector('[data-link]').dataset.state === 'reconnecting'")
    run.grow(90)
    server.start()
    wait_for_position(page, 189)
    run.grow(60)
    wait_for_position(page, 249)
    assert page.evaluate("document.body.dataset.mark") == "kept", "the page was not loaded anew"
    lines = [int(one) for one in page.locator("[data-feed] li").evaluate_all("all => all.map(one => one.dataset.seq)")]
    assert lines == run.lines()[::-1]
    fresh = watched(f"{server.address}/runs/live").page
    wait_for_drawing(fresh)
    assert words_of(page.locator("main").inner_html()) == words_of(fresh.locator("main").inner_html())


@pytest.mark.slow
def test_reload_keeps_the_view(watched, server):
    page = watched(f"{server.address}/runs/finished").page
    wait_for_drawing(page)
    page.locator(".timeline-canvas").focus()
    for key in ("+", "+", "ArrowRight"):
        page.keyboard.press(key)
    page.locator("[data-versions]").fill("2")
    wait(page, "location.hash.includes('view=at') && location.hash.includes('version=2')")
    before = page.locator(".timeline-range").inner_text()
    page.reload()
    wait_for_drawing(page)
    assert page.locator(".timeline-range").inner_text() == before
    assert page.locator("[data-version-words]").inner_text() == "2"
    assert "0002-0.png" in page.locator("[data-after] img").first.get_attribute("src")
    page.get_by_role("button", name="follow the newest hour").click()
    page.reload()
    wait_for_drawing(page)
    assert page.get_by_role("button", name="follow the newest hour").get_attribute("aria-pressed") == "true"


@pytest.mark.slow
def test_hover_and_keyboard_tell_state_lease_and_attempt(watched, server):
    page = watched(f"{server.address}/runs/finished").page
    wait_for_drawing(page)
    canvas = page.locator(".timeline-canvas")
    at = canvas.evaluate("""canvas => {
        const wide = canvas.clientWidth - 132;
        return 132 + 24.0 / 83.5 * wide;
    }""")
    page.get_by_role("button", name="the whole run").click()
    canvas.hover(position={"x": at, "y": 34})
    wait(page, "document.querySelector('.timeline-tip').textContent.includes('attempt 2')")
    tip = page.locator(".timeline-tip").inner_text()
    assert re.search(r"reserved-1/0, 0:2\d", tip)
    assert "roll out" in tip
    assert "lease rollout/1/" in tip
    assert "from step 4" in tip
    canvas.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    wait(page, "document.querySelector('.visually-hidden[aria-live]').textContent.includes('spot-1/0')")


@pytest.mark.slow
def test_two_runs_are_chosen_in_the_list_and_share_their_scale(watched, server):
    page = watched(f"{server.address}/").page
    button = page.get_by_role("button", name="Compare two runs")
    assert button.is_disabled()
    for name in ("finished", "rough"):
        page.get_by_label(f"compare {name}").check()
    button.click()
    page.wait_for_url("**/pair/finished/rough")
    wait_for_drawing(page)
    charts = page.locator("[data-chart-key=score-exact] [data-chart]")
    assert charts.count() == 2
    ends = [json.loads(charts.nth(n).get_attribute("data-chart"))["lines"][0]["values"][-1] for n in range(2)]
    assert ends[0] != ends[1]


@pytest.mark.slow
def test_colours_can_be_chosen_and_stay(watched, server):
    page = watched(f"{server.address}/runs/finished", scheme="light").page
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(2):
        page.locator("[data-theme-button]").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


@pytest.mark.slow
def test_page_without_scripts_has_every_table(browser, server):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.address}/runs/finished")
    assert page.locator("[data-panel=timeline] tbody tr").count() == 4
    assert page.locator("[data-panel=scores] table").count() == 2
    context.close()
