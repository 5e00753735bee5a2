"""One run of the demo, read from its journal."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.figures import Figure
from spotlight.control.ledger.audit import audit
from spotlight.core.events import Evaluated, RunStopped, WorkerLost
from spotlight.core.journal import read


def measure(seed: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", "demo", "--seed", str(seed)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--output.name", f"seed-{seed}"], cwd=folder, env=environment, check=True)
    records = list(read(folder / "runs" / f"seed-{seed}" / "journal"))
    scores = [record.event.scores for record in records if isinstance(record.event, Evaluated)]
    stopped = next(record for record in records if isinstance(record.event, RunStopped))
    before_stop = [record.event for record in records if record.seq < stopped.seq]
    lost = [event for event in before_stop if isinstance(event, WorkerLost)]
    report = audit(records)
    return {
        "exact_before": scores[0]["exact"][0],
        "exact_after": scores[-1]["exact"][0],
        "exact_gain": scores[-1]["exact"][0] - scores[0]["exact"][0],
        "reward_before": scores[0]["reward"][0],
        "reward_after": scores[-1]["reward"][0],
        "minutes": stopped.at / 60,
        "preemptions": float(len(lost)),
        "preemptions_without_notice": float(sum(not event.noticed for event in lost)),
        "audit_clean": float(report.clean),
    }


def figures(seeds: Sequence[int], keep: Path | None) -> dict[str, Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [measure(seed, folder) for seed in seeds]
    return {name: Figure.mean([run[name] for run in runs], "") for name in runs[0]}
