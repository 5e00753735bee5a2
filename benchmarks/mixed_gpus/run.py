"""Fleets, work, and simulated runs of the benchmark."""

import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track

from benchmarks.mixed_gpus.policies import Policy
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile
from spotlight.core.events import IterationDone
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.simulate import Simulation, simulate
from spotlight.surface.simulating import Assumed, model_numerics, simulated_config

PROFILES = ("h200-qwen-image-512", "h200-qwen-image-1280")
TRAINERS, ROLLERS, GROUP = 4, 12, 16
FLEETS = {
    "1": (1.0,),
    "1 : 0.5": (1.0, 0.5),
    "1 : 0.33": (1.0, 0.33),
    "1 : 0.33, one in four fast": (1.0, 0.33, 0.33, 0.33),
    "2.3 : 1 : 0.33": (2.3, 1.0, 0.33),
    "1 : 0.5 : 0.25": (1.0, 0.5, 0.25),
}
"""Relative speeds, repeated over the slots. By the vendors' dense bf16 figures a B200 is 2.3 H200s, an L40S 0.37 and an
A100 0.32."""
WORK = ((24, 15), (12, 30), (4, 30))
"""Prompts of 16 samples, and steps."""
DEVIATION = 0.03
"""Largest deviation of a node's speed from that of its kind."""
LEARNING = "words-large-nft"
"""Fit of the rewards; no duration depends on them."""
WARM_UP, ITERATIONS = 2, 6
"""In the first iterations speeds are unknown."""
STEADY = ("eval.every=1000", "eval.prompts=1", "output.checkpoint_every=1000", "rollout.initial_noise=per_sample")
UPDATE = ("algorithm.timesteps_per_sample=2", "train.updates_per_iteration=1")


class Setup(StrEnum):
    SERIAL = "disaggregated-serial"
    PIPELINED = "pipelined"
    SPOTLIGHT = "spotlight"


POLICIES = {Setup.SERIAL: tuple(Policy), Setup.PIPELINED: (Policy.MEASURED, Policy.BLIND)}


class Case(msgspec.Struct, frozen=True):
    """One run."""

    profile: str
    fleet: str
    prompts: int
    steps: int
    seed: int
    setup: Setup
    policy: Policy

    @property
    def speeds(self) -> list[float]:
        """Speeds of the nodes in the order of their numbers."""
        draw, kinds = random.Random(f"{self.fleet} {self.seed}"), FLEETS[self.fleet]
        speeds = [kinds[number % len(kinds)] * (1 + draw.uniform(-DEVIATION, DEVIATION)) for number in range(ROLLERS)]
        draw.shuffle(speeds)
        return [round(speed, 4) for speed in speeds]


class Outcome(msgspec.Struct, frozen=True):
    case: Case
    rollout_s: float
    """Mean rollout phase; where phases overlap, until the last rollout."""
    iteration_s: float
    ideal_s: float
    """Seconds of an ideal rollout phase."""


def cases_of(seeds: Sequence[int], quick: bool) -> list[Case]:
    profiles, fleets = (PROFILES[:1], list(FLEETS)[:3:2]) if quick else (PROFILES, list(FLEETS))
    return [
        Case(profile, fleet, prompts, steps, seed, setup, policy)
        for profile, fleet, (prompts, steps), seed, setup in product(profiles, fleets, WORK, seeds, Setup)
        for policy in POLICIES.get(setup, (Policy.MEASURED, Policy.BLIND))
    ]


def outcomes_of(cases: Sequence[Case]) -> list[Outcome]:
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = processes.map(outcome_of, cases, chunksize=8)
        return list(track(found, "runs", len(cases), console=Console(stderr=True)))


def outcome_of(case: Case) -> Outcome:
    profile, prices, speeds = Profile.load(case.profile), PriceTable.load(), case.speeds
    recipe = f"words-large-nft+{case.setup}"
    fleet = f"cluster.fleet={[{'speed': speed} for speed in speeds]}"
    machines = [f"cluster.spot={ROLLERS}", f"cluster.reserved={TRAINERS}", f"cluster.gang={TRAINERS}", fleet]
    work = [f"rollout.prompts={case.prompts}", f"rollout.group_size={GROUP}", f"rollout.steps={case.steps}"]
    run = [f"seed={case.seed}", f"iterations={ITERATIONS}"]
    assumed = Assumed(profile=profile, prices=prices)
    config = simulated_config(recipe, [*STEADY, *UPDATE, *machines, *work, *run], assumed)
    rows = config.cluster.rows
    assert isinstance(rows, int)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "run")
        folder.path.mkdir()
        simulation = Simulation(
            config=config,
            recipe=recipe,
            profile=profile,
            numerics=model_numerics(config, LEARNING),
            prices=prices,
            scheduler=case.policy.scheduler(statistics.fmean(speeds) * full_speed(profile, rows)),
        )
        simulate(simulation, folder)
        done = [(record.at, record.event) for record in read(folder.journal) if isinstance(record.event, IterationDone)]
    assert len(done) == ITERATIONS
    return Outcome(
        case=case,
        rollout_s=statistics.fmean(event.rollout_s for _, event in done[WARM_UP:]),
        iteration_s=(done[-1][0] - done[WARM_UP - 1][0]) / (ITERATIONS - WARM_UP),
        ideal_s=ideal_s(case, profile, rows),
    )


def full_speed(profile: Profile, rows: int) -> float:
    """Row-steps per second of a slot of speed 1."""
    return rows / profile.seconds(Operation.DENOISE_STEP, rows)


def ideal_s(case: Case, profile: Profile, rows: int) -> float:
    sample_s = case.steps / full_speed(profile, rows) + profile.seconds(Operation.DECODE, rows) / rows
    before_and_after_s = profile.seconds(Operation.NODE_FETCH) + profile.seconds(Operation.REWARD)
    return case.prompts * GROUP * sample_s / sum(case.speeds) + before_and_after_s


def description(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return {
        "profiles": {name: Profile.load(name).digest for name in sorted({each.case.profile for each in outcomes})},
        "slots": f"{TRAINERS} reserved of speed 1 train, {ROLLERS} spot roll out",
        "fleets": FLEETS,
        "deviation_of_speeds": DEVIATION,
        "work": [f"{prompts}x{GROUP} samples, {steps} steps" for prompts, steps in WORK],
        "chosen_on": "8 slots, seed 0, 2 to 32 prompts, 10 to 40 steps",
    }
