"""Runs of one recipe, timed from the start of the command, each with one worker killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

from benchmarks.lib.figures import Figure
from spotlight.compute.models.config import CUDA, found_device
from spotlight.core.events import Accepted, Leased, Record, WorkerJoined
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass

PROMPTS, GROUP = 256, 16
CUT = (
    "iterations=200", "cluster.reserved=1", "cluster.spot=1", "eval.every=1000", "output.name=run",
    "explore.enabled=off", f"rollout.prompts={PROMPTS}", f"rollout.group_size={GROUP}", "cluster.rows=16",
)  # fmt: skip
"""Long phases of rollouts, so that there is work for a replacement whenever it comes. Few rows: the first sample of a
large batch, and the rewards of the one before, would be measured instead of the start."""
PATIENCE_S = 300.0
POLL_S = 0.02
SETTLED_S = 30.0
"""Wait between the first sample and the kill, in which a spare imports; a worker that is lost sooner waits for it."""
IMPORTING = "import torch, diffusers; diffusers.QwenImageTransformer2DModel; torch.zeros(1, device='{device}').item()"
SECONDS = "seconds"
Found = TypeVar("Found")


class Round(NamedTuple):
    """Seconds of one round."""

    imports: float
    start: float
    replaced: float
    rejoined: float


def measure(recipe: str, device: str, rounds: int, more: Sequence[str] = ()) -> tuple[dict[str, Figure], list[str]]:
    """Figures over the rounds, and the settings that differ from the recipe."""
    chosen = found_device(device)
    settings = [*CUT, f"model.device={chosen}", *(["cluster.share_devices=true"] if chosen == CUDA else []), *more]
    # The first import reads the modules from disk, which the run then finds in memory.
    _import(chosen)
    found = [_round(recipe, settings, chosen) for _ in range(rounds)]
    figures = {
        "start_vs_import": Figure.median([each.start / each.imports for each in found], "times the imports"),
        "replace_vs_start": Figure.median([each.replaced / each.start for each in found], "of the start"),
        "import_s": Figure.median([each.imports for each in found], f"{SECONDS} to import and open the device"),
        "start_s": Figure.median([each.start for each in found], f"{SECONDS} to the first accepted sample"),
        "rejoined_s": Figure.median(
            [each.rejoined for each in found], f"{SECONDS} from the kill until the replacement has joined"
        ),
        "replaced_s": Figure.median(
            [each.replaced for each in found], f"{SECONDS} from the kill to the replacement's first accepted sample"
        ),
    }
    return figures, settings


def _import(device: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", IMPORTING.format(device=device)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _round(recipe: str, settings: Sequence[str], device: str) -> Round:
    imports = _import(device)
    with TemporaryDirectory(prefix="start-") as folder:
        command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", recipe]
        for setting in settings:
            command += ["--set", setting]
        log = Path(folder) / "log"
        began = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=out)
        journal = _Journal(Path(folder) / "runs" / "run" / "journal", process, log)
        try:
            journal.wait(lambda records: next((r for r in records if isinstance(r.event, Accepted)), None))
            start = time.monotonic() - began
            time.sleep(SETTLED_S)
            replaced, rejoined = _replaced(journal)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    found = Round(imports, start, replaced, rejoined)
    print(found, file=sys.stderr, flush=True)
    return found


class _Journal:
    """The journal of a running run."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self._folder = folder
        self._process = process
        self._log = log

    def records(self) -> list[Record]:
        return list(read(self._folder)) if self._folder.is_dir() and list_segments(self._folder) else []

    def wait(self, seen: Callable[[Sequence[Record]], Found | None]) -> Found:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = seen(self.records())
            if found is not None:
                return found
            if self._process.poll() is not None:
                break
            time.sleep(POLL_S)
        raise SystemExit(f"the run ended or hung: {self._log.read_text(errors='replace')[-3000:]}")


def _replaced(journal: _Journal) -> tuple[float, float]:
    """Kill the spot worker early in a phase of rollouts.

    Returns the seconds until its replacement's first sample is accepted, and until the replacement has joined.
    """

    def victim_at_work(records: Sequence[Record]) -> WorkerJoined | None:
        joined = [r.event for r in records if isinstance(r.event, WorkerJoined)]
        spot = next((event for event in joined[::-1] if event.slot_class is SlotClass.SPOT), None)
        leases = [r.event for r in records if isinstance(r.event, Leased)]
        if spot is None or leases[-1].worker != spot.worker:
            return None
        phase = leases[-1].request.rpartition("/")[0].rpartition("/")[0]
        done = sum(isinstance(r.event, Accepted) and r.event.request.startswith(phase) for r in records)
        return spot if done < PROMPTS * GROUP / 4 else None

    victim = journal.wait(victim_at_work)
    os.kill(victim.pid, signal.SIGKILL)
    began = time.monotonic()

    def replacement(records: Sequence[Record]) -> WorkerJoined | None:
        joined = [r.event for r in records if isinstance(r.event, WorkerJoined)]
        later = joined[joined.index(victim) + 1 :]
        return next((event for event in later if event.slot_class is SlotClass.SPOT), None)

    worker = journal.wait(replacement).worker
    rejoined = time.monotonic() - began
    journal.wait(lambda records: next((r for r in records if _is_accepted(r, worker)), None))
    return time.monotonic() - began, rejoined


def _is_accepted(record: Record, worker: WorkerId) -> bool:
    return isinstance(record.event, Accepted) and record.event.worker == worker
