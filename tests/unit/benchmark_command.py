"""A benchmark as a user runs it, in a process of its own, and settings that make a learning run a matter of seconds."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TINY = (
    "iterations=2", "rollout.prompts=2", "rollout.group_size=2", "rollout.steps=2",
    "train.micro_batch=4", "eval.prompts=4", "eval.steps=2", "eval.every=1", "reward.name=jpeg", "reward.judge=jpeg",
    "reward.processes=1",
)  # fmt: skip


def run_benchmark(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`python -m benchmarks.NAME ARGUMENTS`, from the root of the repository."""
    # Threads that spin while they wait take minutes where other tests run on the same cores.
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
