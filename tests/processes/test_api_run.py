"""A run that Python code starts: it survives the code's death, and other code watches, drains and resumes it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import spotlight as spotlight_command
from tracker_files import tensorboard_files

import spotlight
from spotlight.core import journal
from spotlight.core.events import IterationDone
from spotlight.presence import read_beat
from spotlight.surface.track.tracker_process import Cursor

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
RECIPE = """
extends: words-nft
iterations: 500
rollout: {prompts: 2, group_size: 4, steps: 4}
explore: {plan: fixed, seeds: 4, steps: 2}
eval: {every: 1, prompts: 2, steps: 2}
cluster: {reserved: 1, spot: 1, rows: 4, heartbeat_s: 0.2, pace: cpu-words, pace_speed: 10}
reward: {processes: 1}
output: {name: "it's mine", trackers: [tensorboard], checkpoint_every: 1, journal: {sync: never}}
"""
NOTEBOOK = """
import os, signal, spotlight
run = spotlight.train("recipe.yaml")
print(run.path, run.status().state, flush=True)
os.killpg(os.getpgid(0), signal.SIGKILL)
"""


def test_run_survives_its_starter_and_is_drained_and_resumed_from_elsewhere(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    died = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], stdout=subprocess.PIPE, text=True, start_new_session=True, timeout=120
    )
    assert died.returncode == -signal.SIGKILL
    # It is known as alive from its first moment.
    assert died.stdout.rsplit(maxsplit=1)[1] == "starting"
    run = spotlight.open("it's mine")
    beat = read_beat(run.path)
    assert beat is not None
    assert beat.is_alive
    while not run.curve():
        assert run.wait(1.0).state in ("starting", "running")
    # The death of a tracker is a problem of the run, and not its end.
    os.kill(tracker_of(beat.pid), signal.SIGKILL)
    while not run.status().problems:
        assert run.wait(0.2).state == "running"
    noted = Cursor.read(run.path / "trackers" / "tensorboard.json").seq
    before = steps_written(run.path)
    (problem,) = run.status().problems
    assert (problem.source, "the run goes on without it" in problem.problem) == ("tensorboard", True)
    assert (
        "stops when its iteration is done" in json.loads(spotlight_command("drain", run.path, "--json").out)["sentence"]
    )
    stopped = run.wait(60)
    assert stopped.state == "stopped"
    done = len(stopped.iterations)
    assert 0 < done < 500
    assert "finished: " not in (run.path / "logs" / "controller.log").read_text()
    # What is cleaned away is not missed, and the tracker goes on where it was.
    cleaned = json.loads(spotlight_command("clean", run.path, "--yes", "--json").out)
    assert {"images", "logs", "flights"} <= {removal["path"] for removal in cleaned["removals"]}
    assert not (run.path / "images").exists()
    run.resume([f"iterations={done + 1}"], wait=True)
    assert run.status().state == "finished"
    assert [row["iteration"] for row in run.iterations()] == list(range(done + 1))
    assert run.audit().clean
    # It goes on after the last record that it had noted; one written and not noted when it was killed comes again.
    after = [
        record.event.iteration + 1
        for record in journal.read(run.path / "journal", noted)
        if isinstance(record.event, IterationDone)
    ]
    assert steps_written(run.path) == before + after
    assert sorted({*before, *after}) == list(range(1, done + 2))
    assert len(before) + len(after) - (done + 1) in (0, 1)
    assert [step for step, _ in tensorboard_files(run.path)["bill"]] == [done, done + 1]
    with pytest.raises(spotlight.NothingToDo, match="nothing is left to do"):
        run.resume()


def steps_written(run: Path) -> list[int]:
    return [step for step, _ in tensorboard_files(run)["reward/training_groups"]]


def tracker_of(controller: int) -> int:
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    (found,) = [pid for pid in children if b"tracker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(found)
