"""Starts the controller and the agents, and reads what the controller has used."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lib.figures import Figure
from spotlight.control.profiles import Operation, Profile

SIZES = {"0.1mb": 0.1, "1mb": 1.0, "16mb": 16.0}
"""Megabytes of a payload, by name."""
SAMPLES, PER = 192, 1000
FEW, FEW_ROWS, FEW_STEP_S = 16, 4, 0.3
"""Agents of the first part; their pace is the same for all sizes, so that as many heartbeats come between."""
PROFILE = "h200-qwen-image-512"
ROWS, STEPS, COMMIT_EVERY = 8, 40, 2
WORK = ["--steps", str(STEPS), "--commit-every", str(COMMIT_EVERY)]
PATIENCE_S = 600.0
CPU = "processor seconds of the controller per 1,000 samples"
MEMORY = "MB of the controller, at most"


def measure(agents: int, seconds: float, repeats: int) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    runs = [{name: _returned(size) for name, size in SIZES.items()} for _ in range(repeats)]
    for name in SIZES:
        found[f"cpu_s_{name}"] = Figure.median(
            [run[name]["cpu_s"] * PER / SAMPLES for run in runs],
            CPU,
        )
        found[f"peak_mb_{name}"] = Figure.median([run[name]["peak_mb"] for run in runs], MEMORY)
    for what, key in (("cpu", "cpu_s"), ("memory", "peak_mb")):
        found[f"{what}_growth_16mb"] = Figure.median(
            [run["16mb"][key] / run["0.1mb"][key] for run in runs], "times that with 0.1 MB"
        )
    if agents:
        crowd = _crowd(agents, seconds)
        found["cores_at_1k_agents"] = Figure.single(crowd["cpu_s"] / crowd["seconds"], f"cores, {agents} agents")
        found["crowd_peak_mb"] = Figure.single(crowd["peak_mb"], MEMORY)
        found["crowd_samples"] = Figure.single(crowd["accepted"], "samples accepted by the end")
    return found


def _returned(payload_mb: float) -> dict[str, float]:
    pace = ["--payload-mb", str(payload_mb), "--rows", str(FEW_ROWS), "--step-s", str(FEW_STEP_S)]
    return _measured(["--agents", str(FEW), "--samples", str(SAMPLES), *WORK], pace, FEW)


def _crowd(agents: int, seconds: float) -> dict[str, float]:
    step_s = Profile.load(PROFILE).seconds(Operation.DENOISE_STEP, batch=ROWS)
    samples = int(agents * ROWS * (2 + 1.5 * (seconds + 60) / (step_s * STEPS)))
    controller = ["--agents", str(agents), "--samples", str(samples), "--seconds", str(seconds), *WORK]
    return _measured(controller, ["--rows", str(ROWS), "--step-s", str(step_s), "--payload-mb", "0.001"], agents)


def _measured(controller: list[str], agents: list[str], count: int) -> dict[str, float]:
    with TemporaryDirectory(prefix="controller-") as folder:
        module = [sys.executable, "-m", "benchmarks.controller.controller_process", "--folder", folder]
        process = subprocess.Popen([*module, *controller], stdout=subprocess.PIPE, text=True)
        # Apart from the agents, whose writes would evict the controller's caches.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, cores[:1])
        assert process.stdout is not None
        port = int(process.stdout.readline())
        there = ["--address", f"127.0.0.1:{port}", "--folder", folder, "--agents", str(count)]
        crowd = subprocess.Popen([sys.executable, "-m", "benchmarks.controller.agents", *there, *agents])
        os.sched_setaffinity(crowd.pid, cores[1:] or cores)
        try:
            found = dict(json.loads(process.stdout.readline()))
            process.wait(PATIENCE_S)
        finally:
            for each in (crowd, process):
                each.kill()
                each.wait()
    print(Path(folder).name, controller, found, file=sys.stderr, flush=True)
    return found
