"""A container with 64 MB of shared memory: the demo finishes with its weights on disk and a warning."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spotlight.core.events import ProblemNoted, RunStopped
from spotlight.core.journal import read

pytestmark = pytest.mark.timeout(600)
SHORT = (
    "output.name=run", "iterations=2", "rollout.prompts=2", "rollout.group_size=4", "rollout.steps=4",
    "explore.seeds=4", "explore.steps=2", "eval.prompts=4", "eval.steps=4", "market.trace=null",
)  # fmt: skip
SMALL = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'


def can_unshare() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-m", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="a private mount of /dev/shm needs unshare -m")
def test_demo_with_64_mb_of_shared_memory_finishes_with_its_weights_on_disk_and_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", "demo"]
    settings = [part for setting in SHORT for part in ("--set", setting)]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", SMALL, "sh", *command, *settings],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    events = [record.event for record in read(tmp_path / "runs" / "run" / "journal")]
    warnings = [event for event in events if isinstance(event, ProblemNoted)]
    assert any("weights go to" in event.problem and "--shm-size" in event.problem for event in warnings)
    assert warnings[0].problem in done.stdout
    assert isinstance(events[-1], RunStopped)
    assert events[-1].finished
    assert not (tmp_path / "runs" / "run" / "store").exists(), "copies of weights are deleted when the run ends"
