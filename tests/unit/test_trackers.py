"""Trackers of a recorded run: the real packages, in their real processes, and their files read back; then failures."""

import asyncio
import io
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import story_journal
from command_line import spotlight
from journal_stories import CALM, HandClock
from PIL import Image
from story_journal import story
from tracker_files import Written, tensorboard_files, trackio_store, wandb_files

from spotlight.config import load_config
from spotlight.control.market.bill import Bill
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import RunStopped
from spotlight.core.journal import Journal
from spotlight.folder import RunFolder, TrackerKind
from spotlight.surface.kept_view import latest
from spotlight.surface.track.tracker import TrackedPicture, TrackedRun, safe_name
from spotlight.surface.track.tracker_process import ATTEMPTS, TrackerReport, TrackerStage, Tracking
from spotlight.surface.track.tracker_processes import TrackerProcess, TrackerProcesses, tracked_run

HOSTILE = "<script>alert(1)</script>\x1b]0;mine\x07 \u202egnp.exe " + "x" * 3000
NAME = "it's <b>\x1b[2J é mine"
NOT_PRINTABLE = tuple(map(chr, (*range(32), 0x7F, 0x202E)))


def write_run(path: Path, iterations: int = 2) -> RunFolder:
    folder = RunFolder(path)
    path.mkdir(parents=True)
    config = load_config("words-nft", ["output.project=stories"])
    folder.write_config(config.model_dump(mode="json"))
    clock = HandClock(0.0)
    with Journal.create(folder.journal, clock.now, CALM) as journal:
        for record in story(iterations):
            clock.seconds = record.at
            journal.append(record.event)
    for picture in latest(folder.journal).gallery:
        (path / picture.path).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((32, 96, 3), 10 * picture.iteration, np.uint8)).save(path / picture.path)
    return folder


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, dict[str, Written]]:
    """A run with a hostile name and hostile prompts, in all three trackers."""
    here = tmp_path_factory.mktemp("tracked")
    with pytest.MonkeyPatch.context() as patch:
        # Without the texts of its prompts, the run shows their ids.
        patch.setattr(story_journal, "PROMPTS", [f"{number} {HOSTILE}" for number in range(4)])
        folder = write_run(here / "runs" / NAME)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("TRACKIO_DIR", str(here / "store"))
        output = load_config("words-nft", ["output.project=stories"]).output
        with TrackerProcesses(list(TrackerKind)) as trackers:
            trackers.open(folder, output, None)
    written = {
        "tensorboard": tensorboard_files(folder.path),
        "wandb": wandb_files(folder.path),
        "trackio": trackio_store(here / "store", "stories"),
    }
    return folder, written


@pytest.mark.parametrize("kind", list(TrackerKind))
def test_a_tracker_has_the_scores_figures_and_bill_of_the_journal(tracked, kind):
    folder, written = tracked
    view, found = latest(folder.journal), written[kind.value]
    for name in ("exact", "reward"):
        curve = [(step, round(value, 5)) for step, value in found[f"held_out/{name}"]]
        assert curve == [(iteration, round(interval.value, 5)) for iteration, interval in view.curve(name)]
        lows = [round(value, 5) for _, value in found[f"held_out/{name}_low"]]
        assert lows == [round(interval.low, 5) for _, interval in view.curve(name)]
    rewards = [(step, round(value, 5)) for step, value in found["reward/training_groups"]]
    assert rewards == [(one.iteration + 1, round(one.reward, 5)) for one in view.iterations]
    assert [round(value, 5) for _, value in found["training/loss"]] == [1.0, 0.5]
    assert found["market/preemptions"][-1] == (2, len(view.timeline.preemptions))
    dollars = view.bill(PriceTable.load()).dollars
    assert 0 < found["cost/dollars"][-1][1] <= dollars
    ((step, bill),) = found["bill"]
    assert step == 2
    assert "reserved" in str(bill)
    assert "spot" in str(bill)


@pytest.mark.parametrize("kind", list(TrackerKind))
def test_a_tracker_has_the_pictures_of_every_evaluation_with_safe_captions(tracked, kind):
    found = tracked[1][kind.value]
    pictures = [
        (step, data)
        for name, values in found.items()
        if name.startswith("pictures")
        for step, value in values
        for data in (value if isinstance(value, list) else [value])
    ]
    assert sorted(step for step, _ in pictures) == sorted([0, 1, 2] * 4)
    for step, data in pictures:
        assert np.asarray(Image.open(io.BytesIO(data)))[0, 0, 0] == 10 * step
    assert len(found["captions"]) == 12
    for _, caption in found["captions"]:
        assert "<script>" in caption
        assert not [each for each in NOT_PRINTABLE if each in caption]
        assert len(caption) < 400


def test_names_of_runs_make_no_folder_elsewhere(tracked, tmp_path):
    folder, _ = tracked
    store = folder.path.parents[1] / "store"
    assert sorted(path.name for path in (store / "media" / "stories").iterdir()) == [
        f"it_s_b_2J_mine-{tracked_run(folder, load_config('words-nft').output, None).id}"
    ]
    assert [safe_name(name) for name in ("../../etc", "a/b", "..", "", "\x1b[2J", "é" * 9)] == [
        "_.._etc", "a_b", "run", "run", "_2J", "_",
    ]  # fmt: skip
    # A run folder with links is refused by resume.
    folder.check_no_links()


class Fussy:
    """A tracker in memory that fails at chosen calls."""

    def __init__(self, failures: Sequence[int] = ()) -> None:
        self.failures = set(failures)
        self.calls = 0
        self.opened = 0
        self.seen: list[tuple[int, str]] = []

    def prepare(self) -> None:
        pass

    def open(self, run: TrackedRun) -> None:
        self.opened += 1

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.calls += 1
        if self.calls in self.failures:
            raise ConnectionError("the service is away")
        self.seen.append((step, "scores" if "held_out/exact" in values else "figures"))

    def pictures(self, step: int, pictures: Sequence[TrackedPicture]) -> None:
        pass

    def bill(self, step: int, bill: Bill) -> None:
        self.seen.append((step, "bill"))

    def close(self) -> None:
        pass


WHOLE = [(0, "scores"), (1, "figures"), (1, "scores"), (2, "figures"), (2, "scores"), (2, "bill")]


def follow(folder: RunFolder, tracker: Fussy) -> list[TrackerReport]:
    reports: list[TrackerReport] = []
    run = tracked_run(folder, load_config("words-nft").output, None)
    Tracking(TrackerKind.WANDB, tracker, reports.append, wait=lambda seconds: None).follow(run, lambda: False)
    return reports


def test_a_write_that_fails_is_tried_again_and_reported_once(tmp_path):
    tracker = Fussy(failures=(2, 3, 5))
    reports = follow(write_run(tmp_path / "run"), tracker)
    assert tracker.seen == WHOLE
    assert tracker.opened == 3
    assert [report.stage for report in reports] == [TrackerStage.PROBLEM, TrackerStage.CLOSED]
    assert "cannot be written now (ConnectionError: the service is away); it is tried again" in reports[0].sentence


def test_a_tracker_that_keeps_failing_is_switched_off_and_goes_on_where_it_was_after_a_resume(tmp_path):
    folder = write_run(tmp_path / "run")
    broken = Fussy(failures=range(4, 4 + ATTEMPTS))
    reports = follow(folder, broken)
    assert [report.stage for report in reports] == [TrackerStage.PROBLEM, TrackerStage.OFF]
    assert "a resume tries it again" in reports[1].sentence
    mended = Fussy()
    follow(folder, mended)
    assert broken.seen + mended.seen == WHOLE
    again = Fussy()
    follow(folder, again)
    assert again.seen == []


def test_a_run_that_another_process_writes_is_followed_to_its_end(tmp_path):
    folder = write_run(tmp_path / "run")
    records = story(2)
    (tmp_path / "live").mkdir()
    live = RunFolder(tmp_path / "live")
    live.write_config(folder.read_config())
    clock, tracker = HandClock(0.0), Fussy()
    journal = Journal.create(live.journal, clock.now, CALM)
    written = iter(records)

    def write_some(seconds: float) -> None:
        for record in [next(written) for _ in range(min(40, len(records) - journal.next_seq))]:
            clock.seconds = record.at
            journal.append(record.event)

    write_some(0.0)
    run = tracked_run(live, load_config("words-nft").output, None)
    Tracking(TrackerKind.TRACKIO, tracker, lambda report: None, wait=write_some).follow(run, lambda: False)
    assert isinstance(records[-1].event, RunStopped)
    assert tracker.seen == WHOLE


def test_a_tracker_whose_package_is_missing_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    shown = spotlight("train", "words-nft", "--pace", "cpu-words", "--set", "output.trackers=[wandb]")
    assert shown.code == 3
    assert "the package wandb is not installed; install it with `pip install 'spotlight-rl[wandb]'`" in shown.err
    assert not (tmp_path / "runs").exists()


def test_a_tracker_without_an_account_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentProblem, match="log in with `wandb login`, or set WANDB_MODE=offline"):
        TrackerProcesses([TrackerKind.WANDB])


def test_a_tracker_that_cannot_begin_the_run_is_an_error_at_the_start(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder.path / "trackers").write_text("a file in its place")
    with (
        TrackerProcesses([TrackerKind.TENSORBOARD]) as trackers,
        pytest.raises(EnvironmentProblem, match=r"tensorboard cannot start .*leave it out of output\.trackers"),
    ):
        trackers.open(folder, load_config("words-nft").output, None)


def test_the_death_of_a_tracker_is_recorded_and_raises_nothing(tmp_path):
    folder = write_run(tmp_path / "run", iterations=1)
    segment = next(folder.journal.glob("segment-*"))
    with Journal.create(tmp_path / "live" / "journal", HandClock(0.0).now, CALM) as journal:
        for record in story(1)[:5]:
            journal.append(record.event)
    assert segment.is_file()
    live = RunFolder(tmp_path / "live")
    live.write_config(folder.read_config())
    tracker = TrackerProcess(TrackerKind.TENSORBOARD)
    tracker.reach(TrackerStage.READY)
    tracker.open(tracked_run(live, load_config("words-nft").output, None))
    noted: list[tuple[str, str]] = []

    async def scenario() -> None:
        watching = asyncio.create_task(tracker.watch(lambda source, problem: noted.append((source, problem))))
        await asyncio.sleep(0)
        os.kill(tracker._process.pid, signal.SIGKILL)
        await watching

    asyncio.run(scenario())
    assert noted == [("tensorboard", noted[0][1])]
    assert "ended, and the run goes on without it" in noted[0][1]
    assert tracker.finish(time.monotonic() + 10)
