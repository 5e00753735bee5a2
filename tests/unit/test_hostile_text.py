"""Hostile names and texts: markup, scripts, long words, changes of direction and control characters stay text."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from asgi_client import request
from recorded_folder import recorded_folder, rough_story

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    Crewing,
    Dropped,
    Evaluated,
    IterationDone,
    NodeJoined,
    NodeLost,
    Planned,
    ProblemNoted,
    Record,
    RunStarted,
    WorkerLost,
)
from spotlight.core.types import Prompt
from spotlight.surface.dashboard.dashboard_app import ORDER, dashboard_app
from spotlight.surface.dashboard.followed_run import FollowedRun
from spotlight.surface.dashboard.run_index import RunIndex
from spotlight.surface.formats import score_name, shortened, without_controls
from spotlight.surface.html.templating import TEMPLATES
from spotlight.surface.panels.run_panels import setting_of
from spotlight.surface.projections import RunView
from spotlight.surface.report import write_report

PRICES = PriceTable.load()
EVIL = {
    "markup": "\"><script>alert(1)</script><img src=x onerror=alert(1)><b style='x'>'{{ 7*7 }}{% raw %}",
    "long": "x" * 20_000,
    "right to left": "safe \u202egnp.exe\u202c \u2066abc\u2069 \u0627\u0644\u0633\u0644\u0627\u0645",
    "control": "bell\x07 escape\x1b[31m nul\x00 newline\n\nevent: update\ndata: {}\n\n tab\t del\x7f \x85 \u2028",
    "attribute": "' onmouseover='alert(1)' x='` onfocus=alert(1) autofocus tabindex=0 `",
}


def poisoned(evil: str) -> list[Record]:
    """The rough run with the text wherever a journal has words of people, machines and rewards."""
    changes = {
        RunStarted: {"recipe": evil, "code": evil, "config_digest": evil},
        ProblemNoted: {"source": evil, "problem": evil},
        NodeJoined: {"zone": evil, "price": evil},
        NodeLost: {"cause": evil},
        WorkerLost: {"cause": evil},
        Crewing: {"reason": evil},
        Dropped: {"reason": evil},
        Planned: {"reason": evil},
    }
    records = []
    for record in rough_story():
        event = record.event
        if type(event) in changes:
            event = msgspec.structs.replace(event, **changes[type(event)])
        if isinstance(event, Evaluated):
            event = msgspec.structs.replace(
                event, scores={evil if k == "reward" else k: v for k, v in event.scores.items()}
            )
        if isinstance(event, Accepted) and event.components:
            event = msgspec.structs.replace(event, components={evil: 0.5})
        records.append(msgspec.structs.replace(record, event=event))
    return records


class Parsed(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.text += data


def harmless(html: str, evil: str) -> Parsed:
    """Nothing of the text became an element, an attribute or a control character."""
    page = Parsed(html)
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name in ("style", "autofocus")]
    assert set(page.tags) <= {
        *("html", "head", "meta", "title", "style", "link", "script", "body", "main", "section", "header", "footer"),
        *("nav", "div", "span", "p", "h1", "h2", "h3", "a", "b", "bdi", "small", "ul", "ol", "li", "dl", "dt", "dd"),
        *("table", "caption", "thead", "tbody", "tr", "th", "td", "details", "summary", "figure", "figcaption"),
        *("img", "video", "svg", "defs", "pattern", "g", "rect", "line", "path", "circle", "polyline", "polygon"),
        *("text", "button", "input", "label", "output", "progress", "time", "noscript", "code"),
    }
    assert all(
        value.startswith(("/static/", "data:", "/runs/")) for tag, name, value in page.attributes if name == "src"
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2060-\u206f]", html)
    words = without_controls(evil).strip()
    assert re.sub(r"\s+", "", shortened(words, 120)[:-1]) in re.sub(r"\s+", "", page.text)
    return page


@pytest.fixture(scope="module", params=EVIL)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    evil = EVIL[request.param]
    name = "<i>" + re.sub(r"[/\x00]", "", evil)[:60]
    folder = tmp_path_factory.mktemp("hostile") / name
    prompts = [Prompt(text=f"{evil} {number}") for number in range(4)]
    return evil, recorded_folder(folder, poisoned(evil), prompts=prompts)


def test_hostile_texts_stay_text_in_the_report(hostile, tmp_path: Path):
    evil, folder = hostile
    write_report(RunView.of(poisoned(evil)), folder.path, tmp_path / "report.html", setting=setting_of(folder))
    page = harmless((tmp_path / "report.html").read_text(encoding="utf-8"), evil)
    assert "script" not in page.tags
    assert [value for tag, name, value in page.attributes if tag == "section" and name == "data-panel"]


def test_hostile_texts_stay_text_on_the_page_and_in_the_list(hostile):
    evil, folder = hostile
    index = RunIndex(folder.path.parent, PRICES)
    app = dashboard_app(index)
    (run,) = index.paths()
    page = harmless(request(app, f"/runs/{run}").text, evil)
    assert page.tags.count("script") == 3
    assert [value for _, name, value in page.attributes if name == "data-panel"] == list(ORDER)
    charts = [json.loads(value) for _, name, value in page.attributes if name == "data-chart"]
    assert any(score_name(evil) in (line["label"] for line in chart["lines"]) for chart in charts)
    cards = Parsed(request(app, "/").text)
    assert cards.tags.count("script") == 2
    assert not [name for _, name, _ in cards.attributes if name.startswith("on")]


def test_hostile_texts_cannot_end_an_event_of_the_stream(hostile):
    _, folder = hostile
    body = FollowedRun(folder, PRICES, "run").since(-1).body.decode()
    assert body.count("\n\n") == 1
    assert body.endswith("\n\n")
    assert [line.partition(":")[0] for line in body.strip().split("\n")] == ["id", "event", "data"]
    assert json.loads(body.partition("data: ")[2])["seq"] == len(rough_story()) - 1


@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan"), -1e300])
def test_times_that_no_clock_has_are_shown_as_unknown_in_the_report(value: float, tmp_path: Path):
    def altered(event: object) -> object:
        match event:
            case RunStarted():
                return msgspec.structs.replace(event, wall=value)
            case IterationDone():
                return msgspec.structs.replace(event, rollout_s=value, reward=value)
            case _:
                return event

    records = [msgspec.structs.replace(record, event=altered(record.event)) for record in rough_story()]
    folder = recorded_folder(tmp_path / "run", records, pictures=0)
    write_report(RunView.of(records), folder.path, tmp_path / "report.html", setting=setting_of(folder))
    assert "started –" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_no_template_marks_text_as_safe():
    sources = {path.name: path.read_text() for path in TEMPLATES.iterdir()}
    assert len(sources) > 20
    assert [name for name, text in sources.items() if re.search(r"\|\s*safe|autoescape", text)] == []
    assert [name for name, text in sources.items() if re.search(r"\|\s*markup", text)] == ["page.html"]


def test_letters_of_all_scripts_are_kept():
    text = "naïve 東京 العربية עברית 👩‍🚀 e\u0301"
    assert without_controls(text) == text
    assert without_controls("a\u202eb\x00c\ud800d") == "a\ufffdb\ufffdc\ufffdd"
