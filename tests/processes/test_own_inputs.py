"""A run with a user's own prompts, two rewards and a second judge in one working folder, resumed from another."""

import html
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.core.events import Accepted, Compared, Evaluated, Issued
from spotlight.core.journal import read
from spotlight.core.types import Prompt
from spotlight.core.work import Work

RECIPE = """
extends: words-nft
iterations: 1
rollout: {prompts: 2, group_size: 2, steps: 2}
train: {micro_batch: 4}
explore: {enabled: false}
eval: {every: 1, prompts: 4, steps: 2}
cluster: {reserved: 1, spot: 0, rows: 4}
reward:
  combine: gdpo
  judge: "brightness:dark"
  terms: [{name: jpeg, weight: 3, processes: 1}, {name: "brightness:bright", weight: 4, processes: 1}]
data: {prompts: mine.txt, held_out: held.jsonl}
output: {name: run, journal: {sync: never}}
"""
REWARD = """
def bright(images, prompts):
    return [float(image.mean()) / 255 for image in images]

def dark(images, prompts):
    return [1 - score for score in bright(images, prompts)]
"""
PATIENCE_S = 240.0


def spotlight(folder: Path, *arguments: str) -> str:
    """Run the command as installed: without the working folder on the path."""
    command = [sys.executable, "-P", "-m", "spotlight.surface.cli.main", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_run_with_own_prompts_and_rewards_resumes_from_another_folder_without_the_prompt_files(tmp_path):
    """A file that shadows a module of Python affects neither."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "recipe.yaml").write_text(RECIPE)
    (here / "brightness.py").write_text(REWARD)
    (here / "mine.txt").write_text('the word "river"\nthe word "garden"\nthe word "window"\n')
    (here / "held.jsonl").write_text('{"prompt": "the word \\"kettle\\""}\n{"prompt": "the word \\"lantern\\""}\n')
    (here / "random.py").write_text('raise RuntimeError("this is not the random module")\n')
    started = spotlight(here, "train", "recipe.yaml")
    assert "starting: importing the modules that all workers share" in started
    assert "workers have loaded the model" in started
    for name in ("mine.txt", "held.jsonl"):
        (here / name).unlink()
    spotlight(elsewhere, "resume", str(here / "runs/run"), "--set", "iterations=2", f"reward.folder={here}")

    events = [record.event for record in read(here / "runs/run/journal")]
    held_out = [Prompt(text=f'the word "{word}"').id for word in ("kettle", "lantern")]
    drawn = [
        request.sample.prompt
        for event in events
        if isinstance(event, Issued)
        for request in event.requests
        if request.work is Work.EVALUATION
    ]
    assert sorted(drawn) == sorted(held_out * 6)
    evaluated = [event for event in events if isinstance(event, Evaluated)]
    assert [event.iteration for event in evaluated if event.scores] == [0, 1, 2]
    for event in evaluated:
        assert event.scores["judge"][0] == pytest.approx(1 - event.scores["brightness:bright"][0])
    accepted = [event for event in events if isinstance(event, Accepted)]
    for event in accepted:
        assert event.reward == math.fsum((3 * event.components["jpeg"], 4 * event.components["brightness:bright"]))
    (scorer,) = {event.scorer for event in accepted}
    assert "4 brightness:bright source " in scorer
    assert [set(event.terms) for event in events if isinstance(event, Compared)] == [{"jpeg", "brightness:bright"}] * 2
    report = (here / "runs/run/report.html").read_text()
    assert 'the word "kettle"' in html.unescape(report)
    assert json.loads((here / "runs/run/config.json").read_text())["reward"]["folder"] == str(here)
