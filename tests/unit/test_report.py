"""The page: one file, nothing fetched, everything escaped, for every kind of run."""

import base64
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from PIL import Image
from story_journal import PROMPTS, story

from spotlight.control.market.prices import PriceTable
from spotlight.core.events import Accepted, Evaluated, Record, RunStarted, RunStopped, StepCommitted
from spotlight.surface import formats as words
from spotlight.surface.html.scales import ticks, time_ticks
from spotlight.surface.panels.run_panels import RunSetting
from spotlight.surface.projections import RunView
from spotlight.surface.report import write_report
from spotlight.surface.timeline_bins import SpanIndex, dominant_runs, edges_of

VOID = {"meta", "img", "link", "br", "hr", "input", "rect", "line", "circle", "path", "polyline", "polygon"}


class Page(HTMLParser):
    """Checks that elements nest, and collects the text and the resources of the page."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: dict[str, int] = {}
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "data", "xlink:href")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(records: list[Record], folder: Path, **options) -> Page:
    path = folder / "report.html"
    write_report(RunView.of(records), folder, path, **options)
    return Page(path.read_text(encoding="utf-8"))


def draw_pictures(folder: Path, iterations: int) -> None:
    (folder / "images").mkdir()
    for iteration in range(iterations + 1):
        for group in range(len(PROMPTS)):
            Image.new("RGB", (12, 4), (iteration, group, 0)).save(folder / f"images/{iteration:04d}-{group}.png")


class CleanVerdict:
    clean = whole = True

    def sentences(self) -> list[str]:
        return ["each of 80 rollouts is in exactly one step <ok>"]


def test_page_of_a_run_has_all_sections(tmp_path: Path):
    made = page(story(), tmp_path, verdict=CleanVerdict())
    assert (
        "Held-out exact match rose from 0.40 to 0.67 in 5 iterations and 1 min 24 s, through 4 preemptions "
        "(3 without notice); no sample was lost or trained twice."
    ) in made.text
    for text in ("Timeline of the slots", "reserved-1/0", "spot-2/0", "Exploration", "priced as if", "Exactly once"):
        assert text in made.text
    assert "list-2026-08, 2026-08, digest" in made.text
    assert "each of 80 rollouts is in exactly one step <ok>" in made.text


def test_page_loads_nothing_from_anywhere(tmp_path: Path):
    draw_pictures(tmp_path, iterations=5)
    made = page(story(), tmp_path)
    source = (tmp_path / "report.html").read_text()
    assert made.addresses
    assert all(address.startswith("data:image/png;base64,") for address in made.addresses)
    assert "script" not in made.seen
    assert re.findall(r"https?://|@import|url\((?!#)", source) == []


def test_hostile_strings_reach_the_page_as_text(tmp_path: Path):
    evil = '"><script>alert(1)</script>'
    records = [
        msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, recipe=evil))
        if isinstance(record.event, RunStarted)
        else msgspec.structs.replace(record, event=RunStopped(reason=evil))
        if isinstance(record.event, RunStopped)
        else record
        for record in story(iterations=1)
    ]
    folder = tmp_path / "<i>run"
    folder.mkdir()
    draw_pictures(folder, iterations=1)
    made = page(records, folder, setting=RunSetting(prompts={PROMPTS[0]: evil}))
    assert "script" not in made.seen
    assert "i" not in made.seen
    assert made.text.count("alert(1)") >= 3


def test_pictures_are_embedded_before_and_after(tmp_path: Path):
    draw_pictures(tmp_path, iterations=5)
    made = page(story(), tmp_path, setting=RunSetting(prompts={"harbour": "the word harbour"}))
    pictures = [base64.b64decode(address.partition(",")[2]) for address in made.addresses]
    assert len(pictures) == 2 * len(PROMPTS)
    assert pictures[0] == (tmp_path / "images/0000-0.png").read_bytes()
    assert pictures[1] == (tmp_path / "images/0005-0.png").read_bytes()
    assert "the word harbour" in made.text


def test_missing_foreign_or_outside_pictures_are_left_out(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    draw_pictures(folder, iterations=5)
    (folder / "images/0005-0.png").unlink()
    (folder / "images/0005-1.png").write_bytes(b"no picture")
    outside = tmp_path / "secret.png"
    Image.new("RGB", (2, 2)).save(outside)
    (folder / "images/0005-2.png").unlink()
    (folder / "images/0005-2.png").symlink_to(outside)
    assert len(page(story(), folder).addresses) == 2


def test_videos_of_the_journal_are_embedded_if_they_are_what_they_claim(tmp_path: Path):
    records = [
        msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, payload=f"images/{n}.webm"))
        if isinstance(record.event, Accepted) and record.event.payload
        else record
        for n, record in enumerate(story(iterations=1))
    ]
    (tmp_path / "images").mkdir()
    payloads = [
        record.event.payload for record in records if isinstance(record.event, Accepted) and record.event.payload
    ]
    for number, payload in enumerate(payloads):
        (tmp_path / payload).write_bytes(b"\x1aE\xdf\xa3 video" if number % 4 else b"<html>")
    made = page(records, tmp_path)
    assert made.seen["video"] == len(payloads) - 2 == 6
    assert all(address.startswith("data:video/webm;base64,GkXfo") for address in made.addresses)


def test_run_that_has_just_started_has_a_page(tmp_path: Path):
    made = page(story(finished=False)[:6], tmp_path)
    assert "The run has just started: no evaluation yet." in made.text
    assert "No evaluation yet" in made.text
    assert "No machine has joined yet" in page([], tmp_path).text


def test_change_within_the_error_is_marked(tmp_path: Path):
    made = page(story(iterations=1), tmp_path)
    assert "went from 0.40 to 0.48, a change within the error" in made.text


def test_page_of_a_run_that_stopped_early_has_the_reason(tmp_path: Path):
    records = story(finished=False)
    records.append(Record(len(records), records[-1].at, RunStopped(reason="budget of $5 is spent")))
    assert "Stopped: budget of $5 is spent" in page(records, tmp_path).text


def test_headline_of_a_run_that_failed_early_is_one_line_and_its_reason_stands_below(tmp_path: Path):
    reason = "every sample of iteration 0 was given up, because " + "it could not be scored " * 30
    started = story(finished=False)[:6]
    made = page([*started, Record(6, 9.0, RunStopped(reason=reason))], tmp_path)
    source = (tmp_path / "report.html").read_text()
    assert re.findall(r"<h1>(.*?)</h1>", source) == ["The run stopped before its first evaluation."]
    assert f"Stopped: {' '.join(reason.split())}" in made.text
    assert "No evaluation yet" not in made.text


def captions(folder: Path) -> list[str]:
    return re.findall(r"<figcaption>([^<:]+): [^<]*→", (folder / "report.html").read_text())


def test_loss_gradient_norm_and_kl_are_drawn_by_optimizer_step(tmp_path: Path):
    made = page(story(), tmp_path)
    assert "Loss: 1 → 0.2" in made.text
    assert "Gradient norm: 0.25 → 0.25" in made.text
    assert "KL to the base model: 0 → 0.004" in made.text
    without = [
        msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, figures={}))
        if isinstance(record.event, StepCommitted)
        else record
        for record in story()
    ]
    assert "Gradient norm" not in page(without, tmp_path).text


def test_score_with_the_curve_of_another_is_drawn_once(tmp_path: Path):
    """The reward of words is its component `graded`."""

    def scored(names: dict[str, float]) -> list[str]:
        events = [Evaluated(iteration=n, scores={k: (v + n / 10, 0.0, 1.0) for k, v in names.items()}) for n in (0, 1)]
        page([Record(n, float(n), event) for n, event in enumerate(events)], tmp_path)
        return captions(tmp_path)

    assert scored({"reward": 0.5, "graded": 0.5, "edit": 0.4, "exact": 0.1}) == ["Exact match", "Reward", "Edit"]
    assert scored({"reward": 0.1, "exact": 0.1}) == ["Exact match"]
    assert scored({"reward": 0.5, "graded": 0.51}) == ["Reward", "Graded"]


def test_held_out_prompts_that_are_trained_on_are_reported(tmp_path: Path):
    assert "seeds that are never trained on" in page(story(), tmp_path).text
    made = page(story(), tmp_path, setting=RunSetting(trained_on=3))
    assert "3 of the prompts are also trained on" in made.text
    assert "seeds that are never trained on" not in made.text


def test_long_run_stays_a_small_page(tmp_path: Path):
    records = story(iterations=300, evaluate_every=2)
    made = page(records, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 600_000
    assert "first and last 30 of 300 iterations" in made.text
    assert made.seen["rect"] < 3000


def test_crowded_rows_stack_shares_where_roomy_ones_have_full_height(tmp_path: Path):
    def heights(iterations: int) -> set[str]:
        made = page(story(iterations=iterations), tmp_path)
        source = (tmp_path / "report.html").read_text()
        assert ("heights show their shares" in made.text) == (iterations > 100)
        return set(re.findall(r"v([\d.]+)h-", source))

    assert heights(5) == {"20"}
    assert len(heights(300)) > 20


def test_row_never_has_more_runs_than_pixels_and_keeps_the_dominant_activity():
    view = RunView.of(story(iterations=120))
    edges = edges_of(0.0, view.at, 800)
    for row in view.timeline.ordered():
        seconds = SpanIndex([row]).seconds(edges)
        runs = dominant_runs(seconds, view.at / 800)
        assert 0 < sum(stop - start for start, stop, _ in runs) <= 800
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(runs))
        for start, stop, activity in runs:
            assert all(seconds[activity][n] == max(each[n] for each in seconds.values()) for n in range(start, stop))


def test_page_and_status_agree_on_cost_and_counts(tmp_path: Path):
    view = RunView.of(story())
    made = page(story(), tmp_path)
    assert words.dollars(view.bill(PriceTable.load()).dollars) in made.text
    assert f"rollouts issued queued leased accepted trained dropped 80 0 0 0 {view.samples.trained} 0" in made.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (270000, "3 d 3 h"),
    ],
)
def test_durations_are_formatted(seconds: float, text: str):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"), [(0, "$0.00"), (0.0421, "$0.042"), (12.3, "$12.30"), (12345.6, "$12,346"), (None, "–")]
)
def test_dollars_are_formatted(amount: float | None, text: str):
    assert words.dollars(amount) == text


def test_ticks_are_round_numbers_inside_the_range():
    assert ticks(0.37, 0.71) == [0.4, 0.5, 0.6, 0.7]
    assert ticks(0, 400, 4) == [0, 100, 200, 300, 400]
    assert ticks(2, 2) == [2]
    assert time_ticks(83) == [0, 15, 30, 45, 60, 75]
    assert len(time_ticks(30 * 86400.0)) <= 10
