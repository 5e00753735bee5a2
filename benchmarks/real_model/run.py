"""One run of a shipped recipe with random weights, its kill, and the figures of its journal."""

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lib.figures import Figure
from spotlight.config import RunConfig, load_config
from spotlight.control.ledger.audit import audit
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import (
    Accepted,
    Encoded,
    Evaluated,
    IterationDone,
    Leased,
    Previewed,
    Record,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.core.work import Activity, SlotClass, Work
from spotlight.surface.planning import forecast
from spotlight.surface.simulating import Assumed

RECIPES = {"qwen-image": "qwen-image-ocr-512", "sd3": "sd35-pickscore", "flux": "flux-clip"}
PROFILES = {"qwen-image": "h200-qwen-image-512"}
CUT = (
    "iterations=3", "reward.name=jpeg", "reward.processes=2", "rollout.prompts=16", "rollout.group_size=4",
    "explore.plan=fixed", "explore.seeds=8", "explore.steps=4", "eval.prompts=4", "eval.steps=10", "eval.every=3",
    "cluster.share_devices=true", "cluster.rows=8", "cluster.commit_every=2", "train.micro_batch=8",
    "output.name=run", "output.checkpoint_every=2",
)  # fmt: skip
TINY = ("model.device=cpu", "data.size=64x64", "rollout.prompts=4", "train.micro_batch=4")
PATIENCE_S = 540.0
POLL_S = 0.2
KILLED_IN = 1
"""Iteration in which the spot worker is killed, so that previews ran before it."""
MIDWAY_S = 2.5
"""Wait before the kill, so that the rollout has taken some of its steps."""
SECONDS = "seconds"


def measure(family: str, tiny: bool, more: Sequence[str] = ()) -> tuple[dict[str, Figure], list[str]]:
    """Run the recipe with one kill; return its figures and the settings that differ from the recipe."""
    name = f"random-tiny:{family}" if tiny else f"random:{family}"
    settings = [f"model.name={name}", *CUT, *(TINY if tiny else ()), *more]
    with TemporaryDirectory(prefix="real-model-") as folder:
        watch = DeviceWatch()
        records = _killed_run(RECIPES[family], settings, Path(folder), watch, tiny)
        config = load_config(RECIPES[family], settings)
    found = _measured(records)
    found["peak_memory_gib"] = Figure.single(watch.peak_mib / 1024, "GiB of the GPU, all processes")
    found |= {
        name: Figure.single(share, f"{what} from iteration 2 on with a kernel running")
        for name, (share, what) in watch.busy_shares(_phases(records)).items()
    }
    if family in PROFILES:
        found |= _predicted(config, RECIPES[family], Profile.load(PROFILES[family]))
    return found, settings


class DeviceWatch:
    """Reads memory and utilization of the first GPU from its driver; nothing without a GPU.

    The driver's utilization is the share of its last sampling period in which at least one kernel ran.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._busy: list[tuple[float, float]] = []
        self.began = 0.0
        """Start of the run's clock, by the clock of the readings."""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        query = "--query-gpu=memory.used,utilization.gpu"
        command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "100", "-i", "0"]
        try:
            driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        except OSError:
            return
        assert driver.stdout is not None
        for line in driver.stdout:
            used, busy = line.split(",")
            self.peak_mib = max(self.peak_mib, float(used))
            self._busy.append((time.monotonic(), float(busy) / 100))

    def busy_shares(self, phases: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, tuple[float, str]]:
        """Mean utilization in all phases together and in each, with words; phases are in seconds of the run."""
        found = {
            "gpu_busy_share": (self._busy_in([span for spans in phases.values() for span in spans]), "of the time")
        }
        return found | {
            f"gpu_busy_{name}": (self._busy_in(spans), f"of the time of {name}") for name, spans in phases.items()
        }

    def _busy_in(self, spans: Sequence[tuple[float, float]]) -> float:
        read = [(at - self.began, busy) for at, busy in self._busy]
        return statistics.mean(
            [busy for at, busy in read if any(start < at <= end for start, end in spans)] or [float("nan")]
        )


def _killed_run(recipe: str, settings: Sequence[str], folder: Path, watch: DeviceWatch, is_tiny: bool) -> list[Record]:
    """Start the run, kill its spot worker while it holds a rollout, and return the journal of the clean run."""
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", recipe]
    for setting in settings:
        command += ["--set", setting]
    process = subprocess.Popen(command, cwd=folder, stdout=sys.stderr, env=os.environ | {"OMP_NUM_THREADS": "1"})
    journal = folder / "runs" / "run" / "journal"
    try:
        pid = _wait(lambda: _spot_in_flight(_records(journal)), process)
        time.sleep(0.2 if is_tiny else MIDWAY_S)
        os.kill(pid, signal.SIGKILL)
        print(f"killed the spot worker {pid} in mid-flight; {watch.peak_mib / 1024:.0f} GiB so far", file=sys.stderr)
        code = _watched(process, journal, watch)
    finally:
        process.kill()
    records = _records(journal)
    report = audit(records)
    if code or not report.clean or not any(isinstance(record.event, WorkerLost) for record in records):
        logs = "\n".join(
            path.read_text(errors="replace")[-1500:] for path in sorted((journal.parent / "logs").glob("*"))
        )
        raise SystemExit(f"the run ended with {code}: {' '.join(report.sentences())}\n{logs}")
    print(" ".join(report.sentences()), file=sys.stderr)
    return records


def _watched(process: subprocess.Popen[bytes], journal: Path, watch: DeviceWatch) -> int:
    """Wait for the end of the run, and compare its clock with that of the readings."""
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline:
        newest = _records(journal)[-1]
        watch.began = min(watch.began or inf, time.monotonic() - newest.at)
        time.sleep(POLL_S)
    return process.wait(1)


def _records(journal: Path) -> list[Record]:
    return list(read(journal)) if journal.is_dir() and list_segments(journal) else []


def _wait(seen: Callable[[], int | None], process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = seen()
        if found is not None:
            return found
        if process.poll() is not None:
            raise SystemExit(f"the run ended early with {process.returncode}")
        time.sleep(POLL_S)
    raise SystemExit(f"no spot worker held a rollout within {PATIENCE_S:.0f} s")


def _spot_in_flight(records: Sequence[Record]) -> int | None:
    """Process id of a spot worker that holds an unfinished rollout of that iteration."""
    events = [record.event for record in records]
    accepted = {event.request for event in events if isinstance(event, Accepted)}
    pids = {e.worker: e.pid for e in events if isinstance(e, WorkerJoined) and e.slot_class is SlotClass.SPOT}
    for event in events:
        if not isinstance(event, Leased) or event.worker not in pids or event.request in accepted:
            continue
        if event.request.startswith(f"{Work.ROLLOUT.value}/{KILLED_IN}/"):
            return pids[event.worker]
    return None


def _measured(records: Sequence[Record]) -> dict[str, Figure]:
    events = [record.event for record in records]
    joined = [record.at for record in records if isinstance(record.event, WorkerJoined)]
    done = [event for event in events if isinstance(event, IterationDone)]
    ends = [record.at for record in records if isinstance(record.event, IterationDone)]
    evaluated = [record.at for record in records if isinstance(record.event, Evaluated)]
    busy = {
        kind: sum(e.end - e.start for e in events if isinstance(e, Worked) and e.activity is kind) for kind in Activity
    }
    encoded = [event for event in events if isinstance(event, Encoded)]
    return {
        "encode_s": Figure.single(sum(event.seconds for event in encoded), f"{SECONDS} of the text encoder's process"),
        "prompts_encoded": Figure.single(sum(event.prompts for event in encoded), "prompts"),
        "first_worker_s": Figure.single(joined[0], f"{SECONDS} until the first worker has loaded the model"),
        "replaced_worker_s": Figure.single(_replaced_s(records), f"{SECONDS} from the kill to the next spot worker"),
        "evaluation_s": Figure.single(evaluated[0] - max(joined[:2]), f"{SECONDS} of the first evaluation"),
        "rollout_s": Figure.median([event.rollout_s for event in done], f"{SECONDS} per iteration, measured"),
        "train_s": Figure.median([event.train_s for event in done], f"{SECONDS} per iteration, measured"),
        "iteration_s": Figure.single(ends[-1] - ends[-2], f"{SECONDS} of the last iteration"),
        "publish_busy_s": Figure.single(busy[Activity.PUBLISH], f"{SECONDS} of writing weights, whole run"),
        "previews": Figure.single(
            len([event for event in events if isinstance(event, Previewed)]), "batches of previews"
        ),
        "preview_busy_s": Figure.single(busy[Activity.PREVIEW], f"{SECONDS} of slots, whole run"),
    }


def _phases(records: Sequence[Record]) -> dict[str, list[tuple[float, float]]]:
    """Start and end of rollouts, of training and of the rest of each iteration but the first."""
    done = [(record.at, record.event) for record in records if isinstance(record.event, IterationDone)]
    phases: dict[str, list[tuple[float, float]]] = {"rollouts": [], "training": [], "publishing": []}
    for (begin, _), (end, event) in pairwise(done):
        rolled_out, trained = begin + event.rollout_s, begin + event.rollout_s + event.train_s
        for spans, span in zip(
            phases.values(), ((begin, rolled_out), (rolled_out, trained), (trained, end)), strict=True
        ):
            spans.append(span)
    return phases


def _replaced_s(records: Sequence[Record]) -> float:
    lost = next(record.at for record in records if isinstance(record.event, WorkerLost))
    return next(
        (record.at - lost for record in records if isinstance(record.event, WorkerJoined) and record.at > lost),
        float("nan"),
    )


def _predicted(config: RunConfig, recipe: str, profile: Profile) -> dict[str, Figure]:
    """Phases of the simulator with the shipped profile."""
    found = forecast(config, recipe, config.cluster.spot, Assumed(profile=profile, prices=PriceTable.load(None)))
    unit = f"{SECONDS} per iteration, predicted for a GPU per process"
    return {
        "predicted_rollout_s": Figure.single(found.phases.rollout, unit),
        "predicted_train_s": Figure.single(found.phases.train, unit),
        "predicted_iteration_s": Figure.single(found.seconds_per_iteration, unit),
    }
