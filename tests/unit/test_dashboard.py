"""The live page's server: it reads runs of one folder, serves nothing else, and confines what a page may do."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from asgi_client import request
from recorded_folder import recorded_folder
from story_journal import story

from spotlight.control.market.prices import PriceTable
from spotlight.surface.dashboard.dashboard_app import ORDER, SECTIONS, dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex, run_id
from spotlight.surface.html.fragments import PANELS

PRICES = PriceTable.load()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    recorded_folder(folder / "first", story())
    recorded_folder(folder / "second", story(iterations=2))
    (folder / "first" / "secret.png").write_bytes((folder / "first/images/0000-0.png").read_bytes())
    return folder


@pytest.fixture(scope="module")
def app(runs: Path):
    return dashboard_app(RunIndex(runs, PRICES))


class Inline(HTMLParser):
    """Collects what a strict content security policy would block."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.addresses: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action") and value]


@pytest.mark.parametrize("address", ["/", "/runs/first", "/pair/first/second", "/cards", "/login", "/nothing"])
def test_every_page_is_confined_and_asks_only_its_own_host(app, address):
    reply = request(app, address)
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    page = Inline(reply.text)
    assert page.found == []
    assert all(each.startswith(("/", "#")) and not each.startswith("//") for each in page.addresses)


def test_page_has_every_panel_and_its_position(app):
    page = request(app, "/runs/first").text
    assert set(ORDER) == {*PANELS, "damage"}
    assert set(SECTIONS) <= set(ORDER)
    assert re.findall(r'data-panel="(\w+)"', page) == list(ORDER)
    assert f'data-seq="{len(story()) - 1}"' in page


def test_two_runs_stand_side_by_side(app):
    page = request(app, "/pair/first/second").text
    assert re.findall(r'data-panel="(\w+)"', page) == [panel for panel in ORDER for _ in range(2)]
    assert request(app, "/pair/first/first").headers["location"] == "/runs/first"


def test_list_has_a_card_per_run_and_a_folder_that_is_no_run_has_none(app, runs):
    (runs / "notes").mkdir(exist_ok=True)
    cards = request(app, "/").text
    assert re.findall(r'data-card="([^"]+)"', cards) == ["second", "first"]
    assert cards.count("state-finished") == 2
    assert "0.67" in cards


def test_run_that_cannot_be_read_is_named_with_the_reason(runs, tmp_path):
    recorded_folder(tmp_path / "runs/good", story(iterations=1))
    broken = tmp_path / "runs/broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    app = dashboard_app(RunIndex(tmp_path / "runs", PRICES))
    cards = request(app, "/").text
    assert "state-unreadable" in cards
    assert "there is no journal" in cards
    assert request(app, "/runs/broken").status == 409
    assert request(app, "/runs/good").status == 200


@pytest.mark.parametrize(
    "address",
    [
        "/runs/nothing",
        "/runs/..",
        "/runs/../first",
        "/runs/first/media/secret.png",
        "/runs/first/media/config.json",
        "/runs/first/media/../config.json",
        "/runs/first/media//etc/passwd",
        "/static/../dashboard_app.py",
        "/static/vendor/../../dashboard_app.py",
    ],
)
def test_only_what_a_journal_names_is_served(app, address):
    assert request(app, address).status == 404


def test_pictures_of_the_journal_are_served_with_their_type_and_in_parts(app, runs):
    reply = request(app, "/runs/first/media/images/0000-0.png")
    assert reply.body == (runs / "first/images/0000-0.png").read_bytes()
    assert reply.headers["content-type"] == "image/png"
    part = request(app, "/runs/first/media/images/0000-0.png", range="bytes=0-7")
    assert (part.status, part.body) == (206, b"\x89PNG\r\n\x1a\n")


def test_numbers_in_an_address_that_are_none_are_refused(app):
    for query in ("start=x", "start=nan&end=3", "end=inf", "bins=many"):
        assert request(app, f"/runs/first/timeline?{query}").status == 400
    assert request(app, "/runs/first/timeline?start=0&end=1e300&bins=99999999").status == 200


def test_one_run_alone_is_served_at_the_root(runs):
    app = dashboard_app(RunIndex(runs / "first", PRICES))
    assert request(app, "/").headers["location"] == "/runs/first"
    assert request(app, "/runs/second").status == 404


def test_report_can_be_downloaded_and_is_the_report(app):
    reply = request(app, "/runs/first/report")
    assert "attachment" in reply.headers["content-disposition"]
    assert "rose from 0.40 to 0.67" in reply.text


def test_run_with_any_name_has_a_plain_address(tmp_path):
    name = 'a <b>&"%2f..\u202e' + "x" * 60
    recorded_folder(tmp_path / name, story(iterations=1), pictures=0)
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.rename(recorded_folder(tmp_path / "plain", story(iterations=1), pictures=0).path, odd)
    app = dashboard_app(RunIndex(tmp_path, PRICES))
    addresses = re.findall(r'href="(/runs/[^"]+)"', request(app, "/").text)
    assert len(addresses) == 2
    assert all(re.fullmatch(r"/runs/~[0-9a-f]{16}", address) for address in addresses)
    for address in addresses:
        assert request(app, address).status == 200
        assert request(app, f"{address}/panels").status == 200
    assert run_id(Path("/runs/demo-1")) == "demo-1"


def test_panels_are_also_json(app):
    panels = request(app, "/runs/first/panels").json
    assert set(panels) == set(PANELS)
    assert panels["summary"]["trained"] == 80
    assert json.dumps(panels["ledger"]["samples"]["rollouts"])
