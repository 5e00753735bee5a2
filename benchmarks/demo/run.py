"""The demo, measured: score before and after, minutes, preemptions, work redone, and the audit's verdict.

    python -m benchmarks.demo [--seeds 0] [--json] [--out docs/results/demo]

Runs `spotlight train demo` for each seed in a folder of its own, as `make demo` does, and reads its journal.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.provenance import provenance
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


def spread(values: Sequence[float]) -> dict[str, float | str]:
    return {"value": statistics.mean(values), "low": min(values), "high": max(values), "unit": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="write OUT.json")
    parser.add_argument("--keep", type=Path, help="leave the runs in this folder")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = [measure(seed, folder) for seed in args.seeds]
    figures = {name: spread([run[name] for run in runs]) for name in runs[0]}
    result = {"benchmark": "demo", **provenance(), "seeds": args.seeds, "figures": figures}
    for name, figure in figures.items():
        print(f"{name:28s} {figure['value']:.3f}  ({figure['low']:.3f} .. {figure['high']:.3f})", file=sys.stderr)
    if args.out is not None:
        args.out.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    if args.json:
        print(json.dumps(result))
