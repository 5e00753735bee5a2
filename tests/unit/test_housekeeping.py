"""`spotlight clean`, `logs` and `watch` on recorded runs."""

import html
import json
import os
import re
import shlex
import threading
from pathlib import Path

import pytest
from command_line import spotlight
from journal_stories import CALM, HandClock
from recorded_folder import recorded_folder
from story_journal import story

from spotlight.config import load_config
from spotlight.core.events import Checkpointed, RunStopped
from spotlight.core.journal import Journal
from spotlight.folder import OutputConfig, RunFolder
from spotlight.presence import Presence
from spotlight.surface.following import RunFollower
from spotlight.surface.log_files import LogFiles

FILES = (
    "payloads/3/a", "payloads/4/a", "weights/behaviour-2.safetensors", "weights/behaviour-3.safetensors",
    "weights/behaviour-4.safetensors", "weights/behaviour-5.safetensors", "weights/average-4.safetensors",
    "weights/average-5.safetensors", "weights/behaviour-1.gone", "checkpoints/step_000002/x",
    "checkpoints/step_000004/x", "checkpoints/step_000005.part/x", "images/0/a.png", "logs/nursery.log",
    "embeddings/a", "flights/a", "store/a", "export/lora.safetensors", "trackers/wandb.json", "mine.txt",
)  # fmt: skip
NEEDED = {
    "export/lora.safetensors", "trackers/wandb.json", "mine.txt", "checkpoints/step_000004/x",
    "weights/behaviour-5.safetensors", "weights/average-5.safetensors",
}  # fmt: skip


def write_run(finished: bool = True, files: tuple[str, ...] = FILES) -> RunFolder:
    folder = RunFolder.create(OutputConfig(), "words-nft")
    folder.write_config(load_config("words-nft", ["train.updates_per_iteration=1"]).model_dump(mode="json"))
    clock = HandClock(0.0)
    with Journal.create(folder.journal, clock.now, CALM) as journal:
        for record in story(5, finished=False):
            clock.seconds = record.at
            journal.append(record.event)
        journal.append(Checkpointed(step=4, path="checkpoints/step_000004"))
        journal.append(RunStopped(reason="all done" if finished else "drained", finished=finished))
    for name in files:
        (folder.path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.path / name).write_bytes(b"x" * 1000)
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def left(folder: RunFolder) -> set[str]:
    return {name for name in FILES if (folder.path / name).exists()}


def test_clean_keeps_what_a_finished_run_is_known_by_and_says_what_goes():
    folder = write_run()
    plan = spotlight("clean", folder.name, "--dry-run")
    assert (plan.code, left(folder)) == (0, set(FILES))
    assert f"{len(FILES) - len(NEEDED)}.0 kB  in all" in plan.out
    planned = json.loads(spotlight("clean", folder.name, "--dry-run", "--json").out)
    assert (planned["deleted"], planned["bytes"]) == (False, 1000 * (len(FILES) - len(NEEDED)))
    before = spotlight("audit", folder.name).out
    done = spotlight("clean", folder.name, "--yes")
    assert done.code == 0, done.err
    assert left(folder) == NEEDED
    assert folder.report.is_file()
    assert spotlight("audit", folder.name).out == before
    assert "nothing to delete" in spotlight("clean", folder.name).out


def test_clean_keeps_what_a_resume_of_an_unfinished_run_needs():
    """Samples and weights that no checkpoint covers, and weights one version older."""
    folder = write_run(finished=False)
    removed = json.loads(spotlight("clean", folder.name, "--yes", "--json").out)
    assert removed["deleted"]
    needed = NEEDED | {f"weights/behaviour-{version}.safetensors" for version in (3, 4)}
    assert left(folder) == needed | {"payloads/4/a", "weights/average-4.safetensors"}


def test_clean_keeps_folders_on_request():
    folder = write_run()
    assert spotlight("clean", folder.name, "--yes", "--keep", "images", "--keep", "logs").code == 0
    assert left(folder) == NEEDED | {"images/0/a.png", "logs/nursery.log"}
    refused = spotlight("clean", folder.name, "--keep", "weights")
    assert refused.code == 2
    assert "--keep does not know 'weights'" in refused.err


def test_clean_without_a_checkpoint_in_the_journal_deletes_none():
    folder = write_run(finished=False)
    for path in (folder.path / "checkpoints" / "step_000004").iterdir():
        path.unlink()
    (folder.path / "checkpoints" / "step_000004").rmdir()
    assert spotlight("clean", folder.name, "--yes").code == 0
    assert (folder.path / "checkpoints" / "step_000002" / "x").exists()


def test_clean_refuses_a_live_run_a_locked_one_a_link_and_silence():
    folder = write_run()
    with Presence(folder.path, lambda: "", lambda: 0.0, tuple):
        live = spotlight("clean", folder.name, "--yes")
    assert live.code == 2
    assert f"(process {os.getpid()}) and needs its files; stop it with `spotlight drain {folder.name}`" in live.err
    unasked = spotlight("clean", folder.name)
    assert unasked.code == 2
    assert "no terminal can confirm it; add --yes" in unasked.err
    outside = Path("outside")
    outside.mkdir()
    (outside / "precious").touch()
    (folder.path / "images" / "way").symlink_to(outside.resolve())
    linked = spotlight("clean", folder.name, "--yes")
    assert linked.code == 2
    assert "is a link to" in linked.err
    assert left(folder) == set(FILES)
    assert (outside / "precious").exists()


@pytest.mark.parametrize("updates", [0, -1, "two", None, True, 1.5])
def test_clean_refuses_settings_that_do_not_say_what_a_checkpoint_covers(updates):
    folder = write_run(finished=False)
    settings = folder.read_config()
    settings["train"]["updates_per_iteration"] = updates
    folder.write_config(settings)
    refused = spotlight("clean", folder.name, "--yes")
    assert refused.code == 2
    assert f"train.updates_per_iteration in {folder.config} is {updates!r} instead of a number" in refused.err
    assert left(folder) == set(FILES)


def test_commands_that_are_suggested_find_the_run_from_another_folder(tmp_path, monkeypatch):
    """Of a dead run, of a live one that is to be cleaned, and of an order that no controller takes."""
    folder = write_run()
    dead = recorded_folder(tmp_path / "runs/with a space", story(2, finished=False))
    (tmp_path / "elsewhere").mkdir()
    for place, names in ((tmp_path, False), (tmp_path / "elsewhere", True)):
        monkeypatch.chdir(place)
        with Presence(folder.path, lambda: "", lambda: 0.0, tuple):
            live = spotlight("clean", folder.path, "--yes").err
        reason = json.loads(spotlight("status", dead.path, "--json").out)["reason"]
        assert spotlight("report", dead.path).code == 0
        texts = (live, spotlight("drain", dead.path).err, reason, html.unescape(dead.report.read_text()))
        for text, run in zip(texts, (folder, dead, dead, dead), strict=True):
            suggested = re.findall(r"(?:`|<code>)spotlight (?:resume|drain|logs) (.+?)(?:`|</code>)", text)
            assert suggested, text
            for word in suggested:
                (name,) = shlex.split(word)
                assert RunFolder.find(name).path == run.path
                assert (name == str(run.path)) is names


def test_log_that_is_deleted_while_logs_are_listed_is_left_out(monkeypatch):
    folder = write_run(files=())
    (folder.path / "logs").mkdir()
    for name in ("kept", "going"):
        (folder.path / "logs" / f"{name}.log").write_text("a line\n")
    looked_at = Path.lstat

    def and_deleted(path: Path) -> os.stat_result:
        found = looked_at(path)
        if path.name == "going.log":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "lstat", and_deleted)
    shown = spotlight("logs", folder.name)
    assert (shown.code, shown.out) == (0, "kept | a line\n"), shown.err
    following = LogFiles(folder.path)
    (folder.path / "logs" / "going.log").write_text("a line\n")
    assert [line.process for line in following.new()] == ["kept"]


def test_logs_show_the_last_lines_of_the_chosen_processes():
    folder = write_run(files=())
    logs = folder.path / "logs"
    logs.mkdir()
    (logs / "nursery.log").write_text("".join(f"line {number}\n" for number in range(40_000)))
    (logs / "spot-1.1-0.1.log").write_bytes(b"\x1b[2Jhostile \xff\xfe\n\xe2\x80\xae half a line")
    secret = Path("secret.log")
    secret.write_text("secret\n")
    (logs / "way.log").symlink_to(secret.resolve())
    shown = spotlight("logs", folder.name, "--lines", "2")
    assert shown.out.splitlines() == [
        "nursery | line 39998", "nursery | line 39999", "spot-1.1-0.1 | \\x1b[2Jhostile ��",
    ]  # fmt: skip
    chosen = spotlight("logs", folder.name, "--worker", "spot-1.1/0.1", "--json")
    assert [json.loads(line)["process"] for line in chosen.out.splitlines()] == ["spot-1.1-0.1"]
    unknown = spotlight("logs", folder.name, "--worker", "sopt-1")
    assert unknown.code == 2
    assert "did you mean 'spot-1.1-0.1'" in unknown.err


class LiveWriter(threading.Thread):
    """Writes a journal as another process does: half of the story, then, once it is watched, the rest and a log."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.records = story(2)
        self.clock = HandClock(0.0)
        self.watched = threading.Event()
        self.presence = Presence(folder.path, lambda: "", lambda: 0.0, tuple).__enter__()
        self.journal = Journal.create(folder.journal, self.clock.now, CALM)
        self.write(self.records[: len(self.records) // 2])

    def write(self, records: list) -> None:
        for record in records:
            self.clock.seconds = record.at
            self.journal.append(record.event)

    def run(self) -> None:
        self.watched.wait(60)
        (self.folder.path / "logs").mkdir(exist_ok=True)
        with (self.folder.path / "logs" / "spot-9.log").open("w") as log:
            for record in self.records[len(self.records) // 2 :]:
                self.write([record])
                log.write(f"record {record.seq}\n")
        self.journal.close()
        self.presence.__exit__(None, None, None)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> LiveWriter:
    folder = RunFolder.create(OutputConfig(), "words-nft")
    folder.write_config(load_config("words-nft", ["iterations=2"]).model_dump(mode="json"))
    writer = LiveWriter(folder)
    has_ended = RunFollower.has_ended

    def asked(follower: RunFollower) -> bool:
        ended = has_ended(follower)
        writer.watched.set()
        return ended

    monkeypatch.setattr(RunFollower, "has_ended", asked)
    return writer


def test_watch_shows_new_lines_of_a_run_of_another_process_until_it_ends(live):
    live.start()
    shown = spotlight("watch", live.folder.name)
    live.join()
    assert shown.code == 0
    assert "iteration 2/2" in shown.out
    assert "iteration 1/2" not in shown.out, "lines of the time before are not repeated"
    assert shown.out.splitlines()[-1].endswith("s  finished: all iterations are done")
    assert shown.out.count("finished: all iterations are done") == 1
    again = spotlight("watch", live.folder.name)
    assert again.out.splitlines()[-1] == "finished: all iterations are done", "a run that had ended has no line"
    assert f"next: spotlight report {live.folder.path}" in shown.err


def test_watch_as_json_has_the_lines_of_train(live):
    live.start()
    lines = [json.loads(line) for line in spotlight("watch", live.folder.name, "--json").out.splitlines()]
    live.join()
    assert lines[0] == {"kind": "started", "run": str(live.folder.path), "iterations": 2, "attempt": 1}
    assert {line["kind"] for line in lines[1:]} == {"iteration", "evaluation"}
    assert lines[-1]["iteration"] == 2


def test_logs_follow_files_that_appear_until_the_run_ends(live):
    live.start()
    shown = spotlight("logs", live.folder.name, "--follow")
    live.join()
    expected = [f"spot-9 | record {record.seq}" for record in live.records[len(live.records) // 2 :]]
    assert shown.out.splitlines() == expected
