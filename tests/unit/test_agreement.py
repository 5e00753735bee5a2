"""Page, report and `status --json` show the same numbers of three recorded runs.

A surface that is added later (terminal, Python API) gets an entry in SURFACES, which shows it every figure of FIGURES.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgi_client import request
from command_line import spotlight
from recorded_folder import recorded_folder, rough_story
from shown_numbers import numbers_in, words_of
from story_journal import story

from spotlight.control.market.prices import PriceTable
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex
from spotlight.surface.formats import count, dollars, duration, percent, score
from spotlight.surface.html.fragments import PANELS

SIMULATED = (
    "iterations=3", "rollout.prompts=8", "rollout.group_size=8", "eval.every=1", "eval.prompts=4", "cluster.spot=4",
    "market.trace=calm", "output.name=simulated",
)  # fmt: skip
RUNS = ("finished", "rough", "simulated")


class RecordedRun:
    """One run, and what each surface shows of it."""

    def __init__(self, folder: Path) -> None:
        app = dashboard_app(RunIndex(folder.parent, PriceTable.load()))
        self.status: dict[str, Any] = json.loads(spotlight("status", folder, "--json").out)
        self.panels: dict[str, Any] = request(app, f"/runs/{folder.name}/panels").json
        self.page = words_of(request(app, f"/runs/{folder.name}").text)
        assert spotlight("report", folder).code == 0
        self.report = words_of((folder / "report.html").read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RecordedRun]:
    root = tmp_path_factory.mktemp("agreement")
    recorded_folder(root / "runs/finished", story())
    recorded_folder(root / "runs/rough", rough_story())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        made = spotlight("sim", "words-nft", "--profile", "h200-qwen-image-512", "--set", *SIMULATED)
        assert made.code == 0, made.err
    return {name: RecordedRun(root / "runs" / name) for name in RUNS}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, runs: dict[str, RecordedRun]) -> RecordedRun:
    return runs[request.param]


@pytest.mark.parametrize("panel", PANELS)
def test_page_and_report_show_the_same_numbers_in_every_panel(run: RecordedRun, panel: str):
    assert numbers_in(run.page[panel]) == numbers_in(run.report[panel])


def of_panels(panels: dict[str, Any]) -> dict[str, Any]:
    """The status, put together from the panels that page and report show."""
    summary, timeline, ledger = panels["summary"], panels["timeline"], panels["ledger"]
    iterations = panels["iterations"]["lines"]
    bars = next((chart for chart in panels["previews"]["charts"] if chart["key"] == "previews"), None)
    return {
        "state": summary["state"],
        "reason": summary["reason"],
        "waiting_for": summary["waiting_for"],
        "run": summary["facts"],
        "seq": summary["seq"],
        "seconds": summary["seconds"],
        "headline": summary["headline"],
        "iterations": [(one["iteration"], one["rollout_s"], one["train_s"], one["reward"]) for one in iterations],
        "evaluations": {
            (int(x), chart["key"].removeprefix("score-")): values
            for chart in panels["scores"]["charts"]
            for line in chart["lines"]
            for x, *values in zip(chart["x"], line["values"], line["low"], line["high"], strict=True)
        },
        "explorations": [
            tuple(values) for values in zip(bars["x"], *(line["values"] for line in bars["lines"]), strict=True)
        ]
        if bars
        else [],
        "slots": sorted((line["name"], line["slot_class"], line["state"]) for line in timeline["lines"]),
        "losses": timeline["losses"],
        "crews": timeline["crews_formed"],
        "samples": ledger["samples"],
        "gaps": ledger["gaps"],
        "problems": panels["problems"]["noted"],
        "cost": panels["cost"],
        "idle_share": {one["tenure"]: one["shares"].get("idle", 0.0) for one in panels["slot_time"]["tenures"]},
    }


def of_status(status: dict[str, Any]) -> dict[str, Any]:
    """The status in the form of `of_panels`; every field of it is here, but for the process that works on the run."""
    unlike = {"pid", "pid_alive", "last_progress_s", "machines"}
    seen = [one for one in status["explorations"] if one["planned"] or one["previewed"] or one["figures"]]
    return {name: value for name, value in status.items() if name not in unlike} | {
        "iterations": [
            (one["iteration"], one["rollout_s"], one["train_s"], one["reward"]) for one in status["iterations"]
        ],
        "evaluations": {
            (one["iteration"], name): [interval["value"], interval["low"], interval["high"]]
            for one in status["evaluations"]
            for name, interval in one["scores"].items()
        },
        "explorations": [
            (one["iteration"], max(one["finished"], one["previewed"]), one["discarded"], one["planned"]) for one in seen
        ],
        "slots": sorted((one["slot"], one["slot_class"], one["state"]) for one in status["slots"]),
        "crews": status["crews"]["formed"],
    }


def test_status_has_the_numbers_of_the_panels(run: RecordedRun):
    status, panels = of_status(run.status), of_panels(run.panels)
    assert status.keys() == panels.keys()
    for name in status:
        wanted = panels[name]
        if name == "evaluations":
            # A curve equal to another one is drawn once.
            status[name] = {key: value for key, value in status[name].items() if key in wanted}
        assert status[name] == wanted, name


FIGURES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "iterations": ("iterations", lambda status: count(len(status["iterations"]), "iteration")),
    "run time": ("summary", lambda status: duration(status["seconds"])),
    "held-out score": (
        "summary",
        lambda status: score(
            [one["scores"][status["headline"]]["value"] for one in status["evaluations"] if one["scores"]][-1]
        ),
    ),
    "preemptions": ("summary", lambda status: count(status["losses"]["preemptions"])),
    "without notice": (
        "summary",
        lambda status: (
            f"{status['losses']['unnoticed']:,} without notice" if status["losses"]["preemptions"] else "none so far"
        ),
    ),
    "repeated steps": ("summary", lambda status: percent(status["samples"]["waste"])),
    "denoising steps": ("summary", lambda status: count(status["samples"]["steps_done"])),
    "dollars": ("cost", lambda status: dollars(status["cost"]["dollars"])),
    "all on demand": ("cost", lambda status: dollars(status["cost"]["all_reserved"])),
    "reserved alone": ("cost", lambda status: dollars(status["cost"]["reserved_only"])),
    "cents by activity": (
        "cost",
        lambda status: " ".join(f"${cents / 100:,.2f}" for cents in status["cost"]["cents"].values() if cents),
    ),
    "samples trained": ("ledger", lambda status: count(status["samples"]["rollouts"]["trained"])),
    "samples dropped": ("ledger", lambda status: count(status["samples"]["rollouts"]["dropped"])),
    "previews": (
        "summary",
        lambda status: count(sum(max(one["finished"], one["previewed"]) for one in status["explorations"])),
    ),
    "idle time of spot slots": ("slot_time", lambda status: percent(status["idle_share"]["spot"])),
    "gaps": ("ledger", lambda status: " ".join(status["gaps"]["sentences"])),
}
"""Panel and text of the figures that people look at first, from the status."""

SURFACES: dict[str, Callable[[RecordedRun, str], str]] = {
    "page": lambda run, panel: run.page[panel],
    "report": lambda run, panel: run.report[panel],
}
"""The words of a surface, by panel; a surface without panels returns all its words."""


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("figure", FIGURES)
def test_surface_shows_the_figures_of_the_status(run: RecordedRun, surface: str, figure: str):
    panel, text = FIGURES[figure]
    shown = SURFACES[surface](run, panel)
    missing = [word for word in text(run.status).split() if word not in shown]
    assert not missing


def test_recorded_runs_have_what_the_figures_are_about(runs: dict[str, RecordedRun]):
    """So that the comparisons above cannot pass by comparing nothing."""
    finished, rough, simulated = (runs[name].panels for name in RUNS)
    assert finished["summary"]["preemptions"] == 4
    assert len(finished["scores"]["charts"]) == 2
    assert rough["crews"]["regroups"] == 1
    assert (rough["timeline"]["reconnects"], rough["timeline"]["withdrawn"]) == (1, 1)
    assert rough["ledger"]["gaps"]["samples_dropped"] == 1
    assert rough["cost"]["unpriced_seconds"] > 0
    assert len(rough["problems"]["advice"]) >= 3
    assert {line["zone"] for line in rough["timeline"]["lines"]} == {"", "zone-b"}
    assert simulated["previews"]["finished"] > 0
    for panels in (finished, rough, simulated):
        assert panels["rewards"]["charts"]
        assert panels["cost"]["dollars"] > 0
        assert all(math.isfinite(value) for value in panels["cost"]["cents"].values())
        assert panels["feed"]["lines"]
