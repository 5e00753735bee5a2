"""Commands of the documents on a live run: its start, orders, resumes, exports and pictures; machines that join it."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import spotlight as spotlight_command
from PIL import Image
from shown_commands import SHOWN, Runner, filled, run_by

import spotlight
from spotlight.surface.run_handle import RunHandle
from spotlight.surface.status import Status

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
PATIENCE_S = 240.0
ENDLESS = ("--set", "iterations=500", "--background")
TINY = (
    "--set", "rollout.prompts=2", "rollout.group_size=4", "rollout.steps=4", "eval.prompts=2", "eval.steps=2",
    "explore.enabled=false", "cluster.rows=4", "cluster.pace=cpu-words", "cluster.pace_speed=10",
)  # fmt: skip
LISTEN = "10.0.0.5:7700"
"""Address in the documents."""


def in_process(*call: object) -> str:
    outcome = spotlight_command(*map(str, call))
    assert outcome.code == 0, (call, outcome.err)
    return outcome.out


def as_process(*call: object) -> None:
    """As a user runs it: the training worker needs a process of its own."""
    command = [sys.executable, "-P", "-m", "spotlight.surface.cli.main", *map(str, call)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, (call, done.stdout, done.stderr)


def train_call(name: str) -> list[str]:
    """The shown command that starts the run of this name."""
    (call,) = [call for call in run_by(Runner.DRY_RUN) if name in call]
    return call


def wait_until(run: RunHandle, seen: Callable[[Status], object]) -> None:
    while not seen(found := run.status()):
        assert found.state in ("starting", "running"), found
        run.wait(0.2)


def has_spot_worker(found: Status) -> bool:
    return any(slot.slot_class == "spot" and slot.age_s is not None for slot in found.slots)


def test_shown_commands_train_drill_drain_resume_export_and_draw(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    for command in SHOWN:
        if command.startswith("printf "):
            subprocess.run(["sh", "-c", command], check=True)
    as_process(*train_call("mine"))
    run = spotlight.open("mine")
    calls = [
        filled(call, RUN=run.path, MODEL=run.path / "base", PATH=tmp_path, FOLDER="F") for call in run_by(Runner.LIVE)
    ]
    by_verb = {verb: [call for call in calls if call[0] == verb] for verb in RUNS_OF}
    assert sum(map(len, by_verb.values())) == len(calls)
    first, *others = by_verb["resume"]
    in_process(*first, *ENDLESS)
    wait_until(run, has_spot_worker)
    for call in by_verb["drill"]:
        assert "nothing was lost" in in_process(*call)
    for call in by_verb["drain"]:
        assert "stops when its iteration is done" in in_process(*call)
    assert run.wait(PATIENCE_S).state == "stopped"
    for number, call in enumerate(others, start=len(run.iterations()) + 1):
        # A reward by path is imported from the working folder, or from one that the command names.
        monkeypatch.chdir(tmp_path / "elsewhere" if any("reward.folder" in word for word in call) else tmp_path)
        as_process(*call, "--set", f"iterations={number}", "cluster.spot=0")
        assert (run.status().state, len(run.iterations())) == ("finished", number)
    assert run.audit().clean
    monkeypatch.chdir(tmp_path)
    check_exports(by_verb["export"], run)
    for call in by_verb["sample"]:
        in_process(*call, "--to", "drawn.png", "--size", "64x64", "--steps", "2")
        with Image.open("drawn.png") as picture:
            picture.load()
        Path("drawn.png").unlink()


RUNS_OF = ("drill", "drain", "resume", "export", "sample")


def check_exports(calls: list[list[str]], run: RunHandle) -> None:
    """Each export makes a folder with a model card, which the next one may not replace."""
    for call in calls:
        made = Path(call[call.index("--to") + 1]) if "--to" in call else run.path / "export"
        in_process(*call)
        assert (made / "README.md").is_file()
        assert list(made.rglob("*.safetensors"))
        assert (made / "model_index.json").exists() is ("--complete" in call)
        shutil.rmtree(made)


def test_shown_commands_let_a_machine_join_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    calls = [[word.replace(LISTEN, address) for word in call] for call in run_by(Runner.JOINING)]
    started = [word.replace(LISTEN, address) for word in train_call("words-1")]
    in_process(*started, *TINY, *ENDLESS)
    run = spotlight.open("words-1")
    wait_until(run, lambda found: found.state == "running")
    # The page's own command comes last: a new token revokes the earlier ones.
    for call in sorted((call for call in calls if call[0] == "token"), key=lambda call: call[1]):
        printed = in_process(*filled(call, RUN="words-1"))
        assert ('"token":' if "-" in call else f"spotlight join {address} ") in printed
    (joining,) = [call for call in calls if call[0] == "join"]
    assert joining[1] == address
    command = [sys.executable, "-P", "-m", "spotlight.surface.cli.main", *joining]
    with Path("join.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as machine:
        wait_until(run, lambda found: any(one.place and one.state == "connected" for one in found.machines))
        in_process("drain", "words-1")
        assert machine.wait(PATIENCE_S) == 4, Path("join.log").read_text()
    assert run.wait(PATIENCE_S).state == "stopped"
