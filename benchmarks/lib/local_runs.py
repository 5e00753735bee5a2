"""Real runs of local processes, timed from their journal."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from spotlight.config import RunConfig
from spotlight.control.ledger.audit import audit
from spotlight.core.events import IterationDone, NodeLost, Record
from spotlight.core.journal import read

WARM_UP = 2
"""Iterations at the beginning that do not count: workers start, speeds are unknown, the base is evaluated."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """One run, real or simulated, in seconds of the profile."""

    iterations: tuple[float, ...]
    """Seconds of each iteration after the warm-up."""
    rollout: float
    train: float
    """Medians over the iterations."""
    losses: int
    """Nodes lost during the iterations."""

    @property
    def iteration(self) -> float:
        return statistics.median(self.iterations)

    @property
    def total(self) -> float:
        return sum(self.iterations)


def trained(config: RunConfig, folder: Path) -> list[Record]:
    """Train through a recipe file, as a user would; return the journal of the clean run."""
    path = folder / "whole.yaml"
    path.write_text(json.dumps(config.model_dump(mode="json")))
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"the run failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    assert config.output.name is not None
    records = list(read(Path(config.output.folder) / config.output.name / "journal"))
    found = audit(records)
    if not found.clean:
        raise SystemExit("the run is not clean:\n" + "\n".join(found.sentences()))
    return records


def timing(records: Sequence[Record], speed: float = 1.0) -> Timing:
    """Times of iterations, each from the end of the previous one; `speed` profile seconds pass in one."""
    done = [record for record in records if isinstance(record.event, IterationDone)]
    counted = done[WARM_UP:]
    events = [record.event for record in counted if isinstance(record.event, IterationDone)]
    ends = [record.at for record in done[WARM_UP - 1 :]]
    return Timing(
        iterations=tuple((end - begin) * speed for begin, end in pairwise(ends)),
        rollout=statistics.median(event.rollout_s for event in events) * speed,
        train=statistics.median(event.train_s for event in events) * speed,
        losses=sum(isinstance(record.event, NodeLost) and ends[0] < record.at <= ends[-1] for record in records),
    )


def warmed_up(records: Sequence[Record]) -> float:
    """Time at which the warm-up ended."""
    return [record.at for record in records if isinstance(record.event, IterationDone)][WARM_UP - 1]
