"""The lines that the quickstart gives for one's own prompts, reward and model, as they are printed there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
