"""The simulator at scale: the real control plane over thousands of simulated slots, on one core.

    python benchmarks/scale.py [--preset full|quick] [--json] [--out docs/results/scale]

The work is video: 40 steps of 30 s per sample, one at a time per slot, so a slot makes three samples an hour. Nodes have
eight slots; all but the first are spot nodes of a calm market (nine node-hours per loss) with its notices. An iteration
has five samples per slot, groups of 16. Every message, journal record and training order is the product's own; rewards
come from a fitted model. Signs of life and commits are as rare as samples that take 20 minutes allow (see `VIDEO`).

A run ends with the first iteration that ends after its virtual hours. Seconds are processor seconds of this process,
those of setting up included; an event is a message that crossed between the controller and the machines.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.weather import Weather, generate
from spotlight.control.profiles import Operation, Profile
from spotlight.control.profiles.profile import Point, Provenance, Series, Times
from spotlight.folder import RunFolder
from spotlight.runtime.sim.learning import LearningModel, ModelNumerics
from spotlight.runtime.sim.simulate import Outcome, Simulation, simulate, simulated

SLOTS_PER_NODE = 8
GROUP = 16
SAMPLES_PER_SLOT = 10
STEPS = 40
RECIPE = "words-large-flow-grpo+spot-no-explore"
VIDEO = {
    "cluster": {"heartbeat_s": 600.0, "silence_s": 3600.0, "commit_every": STEPS // 2, "elastic": {"degrees": [1]}},
    "train": {"updates_per_iteration": 1, "timeout_s": 1e6},
    "eval": {"every": 1_000_000, "prompts": 16},
    "output": {"checkpoint_every": 1},
}
"""Two commits and two signs of life in the 20 minutes that a sample takes; no crews."""
CALM = Weather(
    median_life_s=28800,
    shortest_life_s=300,
    mean_absence_s=1200,
    shortest_absence_s=300,
    zones=2,
    median_zone_s=36000,
    mean_outage_s=1200,
)
"""As of the shipped trace `calm`."""
SECONDS = {
    Operation.DENOISE_STEP: 30.0,
    Operation.TRAIN_TIMESTEP: 0.001,
    Operation.OPTIMIZER_STEP: 30.0,
    Operation.DECODE: 5.0,
    Operation.REWARD: 1.0,
    Operation.PUBLISH: 5.0,
    Operation.NODE_FETCH: 5.0,
    Operation.PEER_COPY: 5.0,
    Operation.REGROUP: 1.0,
    Operation.WORKER_START: 60.0,
    Operation.ROLE_SWITCH: 1.0,
    Operation.CHECKPOINT: 10.0,
}


@dataclass(frozen=True)
class Preset:
    """How much is simulated."""

    small: int
    large: int
    hours: float
    profiled_hours: float
    repeats: int


PRESETS = {
    "full": Preset(small=100, large=10_000, hours=24.0, profiled_hours=1.0, repeats=3),
    "quick": Preset(small=96, large=960, hours=2.0, profiled_hours=0.1, repeats=1),
}


@dataclass(frozen=True)
class Measured:
    """One simulated run."""

    outcome: Outcome
    seconds: float
    """Of the processor."""

    @property
    def event_s(self) -> float:
        return self.seconds / self.outcome.events


def video_profile() -> Profile:
    """Made for this benchmark: one model, one row at a time."""
    operations = {
        operation: Times(
            interpolation="one figure",
            series=(
                Series(
                    provenance=Provenance.DERIVED,
                    how="Made for the benchmark of the simulator's scale.",
                    points=(Point(1, 1, seconds, seconds),),
                ),
            ),
        )
        for operation, seconds in SECONDS.items()
    }
    return Profile(
        name="video",
        model="video",
        width=1280,
        height=720,
        tokens=32_760,
        hardware="none",
        date="2026-11-15",
        commit="none",
        notes="Seconds as of a large video model, for measuring the simulator only.",
        operations=operations,
    )


def machines(slots: int, hours: float, folder: Path, seed: int) -> list[str]:
    """Settings of a cluster of so many slots under a calm market."""
    nodes = max(2, -(-slots // SLOTS_PER_NODE))
    spot = [f"spot-{number}" for number in range(1, nodes)]
    trace = folder / "market.csv"
    trace.write_text(generate(seed, spot, hours + 6, CALM, "calm").to_csv())
    prompts = folder / "prompts.txt"
    prompts.write_text("".join(f"{word}\n" for word in ("amber", "birch", "cedar", "delta", "ember", "flint")))
    return [
        "cluster.reserved=1",
        "cluster.gang=1",
        f"cluster.spot={len(spot)}",
        f"cluster.slots={SLOTS_PER_NODE}",
        f"market.trace={trace}",
        f"rollout.prompts={max(1, slots * SAMPLES_PER_SLOT // GROUP)}",
        f"rollout.group_size={GROUP}",
        f"rollout.steps={STEPS}",
        f"budget.max_hours={hours}",
        f"seed={seed}",
        "iterations=1000",
    ]


def video(config: RunConfig, profile: Profile) -> RunConfig:
    """The recipe as simulated, with rare signs of life."""
    settings = simulated(config, profile).model_dump()
    for section, values in VIDEO.items():
        settings[section] = _merged(settings[section], values)
    return RunConfig.model_validate(settings)


def _merged(base: dict[str, object], top: dict[str, object]) -> dict[str, object]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def measure(config: RunConfig, profile: Profile, folder: Path, label: str) -> Measured:
    numerics = ModelNumerics(LearningModel.load("words-large-nft"), config.seed, config.rollout.steps)
    run = RunFolder(folder / label)
    run.path.mkdir()
    simulation = Simulation(
        config=config, recipe=RECIPE, profile=profile, numerics=numerics, prices=PriceTable.load(None)
    )
    gc.collect()
    began = time.process_time()
    outcome = simulate(simulation, run)
    return Measured(outcome, time.process_time() - began)
