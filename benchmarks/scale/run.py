"""Simulated runs of many slots, and their processor seconds."""

import gc
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.lib.figures import Figure
from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.shipped import CALM
from spotlight.control.market.weather import generate
from spotlight.control.profiles import Operation, Profile
from spotlight.control.profiles.timings import Point, Provenance, Series, Times
from spotlight.folder import RunFolder
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.simulate import Simulation, SimulationEnd, simulate, simulated

SLOTS_PER_NODE = 8
GROUP = 16
SAMPLES_PER_SLOT = 10
STEPS = 40
RECIPE = "words-large-flow-grpo+spot-no-explore"
PICTURES = "h200-qwen-image-1280"
RARE = {"heartbeat_s": 1800.0, "silence_s": 7200.0, "commit_every": STEPS, "elastic": {"degrees": (1,)}}
"""Settings of `cluster` for samples that take 20 minutes."""
PROMPTS = ("a river at dawn", "two foxes at play", "rain on a tin roof", "a train in the snow")
SECONDS = {
    Operation.DENOISE_STEP: 30.0,
    Operation.TRAIN_TIMESTEP: 0.001,
    Operation.OPTIMIZER_STEP: 30.0,
    Operation.DECODE: 0.0,
    Operation.REWARD: 1.0,
    Operation.PUBLISH: 5.0,
    Operation.NODE_FETCH: 5.0,
    Operation.REGROUP: 1.0,
    Operation.WORKER_START: 60.0,
    Operation.ROLE_SWITCH: 1.0,
    Operation.CHECKPOINT: 10.0,
}
"""Durations of a large video model, with decoding in the last step; short training, so that slots are busy."""


@dataclass(frozen=True)
class Preset:
    """Slots, hours and repeats of the simulations."""

    small: int
    middle: int
    large: int
    hours: float
    picture_slots: int
    picture_hours: float
    repeats: int


PRESETS = {
    "full": Preset(
        small=100, middle=1_000, large=10_000, hours=24.0, picture_slots=1_000, picture_hours=0.25, repeats=3
    ),
    "quick": Preset(small=64, middle=320, large=640, hours=4.0, picture_slots=64, picture_hours=0.1, repeats=1),
}


@dataclass(frozen=True)
class Measured:
    """One simulated run."""

    outcome: SimulationEnd
    seconds: float
    """Processor seconds."""

    @property
    def event_s(self) -> float:
        return self.seconds / self.outcome.events

    @property
    def hours(self) -> float:
        return self.outcome.seconds / 3600


def one_figure(seconds: float) -> Times:
    how = "Made for the benchmark of the simulator's scale."
    series = Series(provenance=Provenance.DERIVED, how=how, points=(Point(1, 1, seconds, seconds),))
    return Times(interpolation="one figure", series=(series,))


def video_profile() -> Profile:
    """One row at a time, on one slot."""
    return Profile(
        name="video",
        model="video",
        width=1280,
        height=720,
        tokens=32_760,
        hardware="none",
        date="2026-11-15",
        commit="none",
        notes="Made for the benchmark of the simulator's scale.",
        operations={operation: one_figure(seconds) for operation, seconds in SECONDS.items()},
    )


def picture_profile() -> Profile:
    """The shipped profile with short training: one rank would train for hours on the samples of a thousand slots."""
    profile = Profile.load(PICTURES)
    short = {Operation.TRAIN_TIMESTEP: one_figure(SECONDS[Operation.TRAIN_TIMESTEP])}
    return msgspec.structs.replace(profile, operations={**profile.operations, **short})


def machines(slots: int, hours: float, folder: Path, seed: int) -> list[str]:
    """Settings of a run with this number of slots under a calm market."""
    nodes = max(2, slots // SLOTS_PER_NODE)
    spot = [f"spot-{number}" for number in range(1, nodes)]
    (folder / "market.csv").write_text(generate(seed, spot, hours + 8, CALM, "calm").to_csv())
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    return [
        "cluster.reserved=1",
        "cluster.gang=1",
        f"cluster.spot={len(spot)}",
        f"cluster.slots={SLOTS_PER_NODE}",
        f"market.trace={folder / 'market.csv'}",
        f"data.prompts={folder / 'prompts.txt'}",
        f"rollout.prompts={max(1, slots * SAMPLES_PER_SLOT // GROUP)}",
        f"rollout.group_size={GROUP}",
        f"rollout.steps={STEPS}",
        "rollout.initial_noise=per_sample",
        "train.updates_per_iteration=1",
        "train.timeout_s=1e6",
        "eval.every=1000000",
        "eval.prompts=16",
        "output.checkpoint_every=1",
        f"budget.max_hours={hours}",
        f"seed={seed}",
        "iterations=1000000",
    ]


def with_cluster(config: RunConfig, cluster: Mapping[str, Any]) -> RunConfig:
    settings = config.model_dump()
    elastic = settings["cluster"]["elastic"] | cluster.get("elastic", {})
    settings["cluster"] |= {**cluster, "elastic": elastic}
    return RunConfig.model_validate(settings)


def run(slots: int, hours: float, profile: Profile, cluster: Mapping[str, Any], seed: int) -> Measured:
    """Simulate one run in its own folder, in memory if possible."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="scale-", dir=memory if memory.is_dir() else None) as name:
        folder = Path(name)
        config = with_cluster(simulated(load_config(RECIPE, machines(slots, hours, folder, seed)), profile), cluster)
        numerics = ModelNumerics(LearningModel.load("words-large-nft"), config.seed, config.rollout.steps)
        prices = PriceTable.load(None)
        simulation = Simulation(config=config, recipe=RECIPE, profile=profile, numerics=numerics, prices=prices)
        run_folder = RunFolder(folder / "run")
        run_folder.path.mkdir()
        gc.collect()
        began = time.process_time()
        outcome = simulate(simulation, run_folder)
        seconds = time.process_time() - began
    if not outcome.iterations or outcome.seconds < hours * 3600:
        raise AssertionError(f"{slots} slots stopped after {outcome.seconds:.0f} s: {outcome.reason}")
    return Measured(outcome, seconds)


def figures(preset: Preset) -> dict[str, Figure]:
    """Sizes alternate within a repeat, so that other load on the host slows all of them."""
    video, pictures = video_profile(), picture_profile()
    small: list[Measured] = []
    middle: list[Measured] = []
    large: list[Measured] = []
    shown: list[Measured] = []
    for seed in range(preset.repeats):
        small.append(run(preset.small, preset.hours, video, RARE, seed))
        middle.append(run(preset.middle, preset.hours, video, RARE, seed))
        shown.append(run(preset.picture_slots, preset.picture_hours, pictures, {}, seed))
        large.append(run(preset.large, preset.hours, video, RARE, seed))
    few, more, many = _short(preset.small), _short(preset.middle), _short(preset.large)
    return {
        f"seconds_{many}_slots_{preset.hours:g}h": Figure.median(
            [preset.hours * each.seconds / each.hours for each in large],
            f"processor seconds per {preset.hours:g} simulated hours of video, {preset.large:,} slots",
        ),
        f"growth_{few}_to_{many}": _growth(small, large, "log n is 2 from 100 to 10,000"),
        f"growth_{more}_to_{many}": _growth(middle, large, "log n is 1.33 from 1,000 to 10,000"),
        f"events_per_s_{_short(preset.picture_slots)}": Figure.median(
            [1 / each.event_s for each in shown],
            f"events per processor second, {preset.picture_slots:,} slots, {PICTURES}",
        ),
        f"events_per_s_video_{many}": Figure.median(
            [1 / each.event_s for each in large], f"events per processor second of video, {preset.large:,} slots"
        ),
        "simulated_hours": Figure.median([each.hours for each in large], "virtual hours of the runs with most slots"),
        "events": Figure.median([each.outcome.events for each in large], "events of the runs with most slots"),
    }


def _growth(few: Sequence[Measured], many: Sequence[Measured], allowed: str) -> Figure:
    ratios = [large.event_s / small.event_s for small, large in zip(few, many, strict=True)]
    return Figure.median(ratios, f"seconds per event with most slots / with fewer; {allowed}")


def _short(count: int) -> str:
    return f"{count // 1000}k" if count % 1000 == 0 else str(count)
