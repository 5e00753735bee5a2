"""What the documents promise of real models on a laptop: the quickstart's lines, and every shipped recipe."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recipe_groups import HUB_RECIPES

from spotlight.control.ledger.audit import audit
from spotlight.core.events import Accepted, IterationDone
from spotlight.core.journal import read

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_the_documented_lines_train_export_and_draw(tmp_path):
    section = PAGE.read_text().partition("## Your own prompts, reward and model")[2].partition("\n## ")[0]
    lines = re.findall(r"^    (.*)$", section, re.MULTILINE)
    assert len(lines) == 5
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    events = [record.event for record in read(tmp_path / "runs/mine/journal")]
    assert sum(isinstance(event, IterationDone) for event in events) == 3
    assert {event.scorer.split()[0] for event in events if isinstance(event, Accepted)} == {"mine:bright"}
    assert list(tmp_path.glob("**/pytorch_lora_weights.safetensors"))
    assert list(tmp_path.glob("**/*.png"))


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "family"), HUB_RECIPES.items(), ids=HUB_RECIPES)
def test_recipe_of_a_real_model_runs_on_a_cpu_with_a_tiny_one(recipe, family, tmp_path):
    few = ("--iterations", "1", "--rollout.prompts", "2", "--rollout.group_size", "4", "--eval.prompts", "2")
    given = (
        "--model.name",
        f"random-tiny:{family}",
        "--reward.name",
        "jpeg",
        "--eval.steps",
        "2",
        "--output.name",
        "run",
    )
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", recipe, *given, *few]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = list(read(tmp_path / "runs/run/journal"))
    assert audit(records).clean
    rewards = [record.event.reward for record in records if isinstance(record.event, Accepted)]
    assert len(set(rewards)) > 1, "a constant reward teaches nothing"
