"""Real runs with one and two training ranks, and their simulations."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.fidelity.run import CPU_PROFILE, Case, compared, fresh_profile
from benchmarks.lib.figures import Figure
from benchmarks.lib.local_runs import WARM_UP, Timing
from spotlight.control.profiles import Operation, Profile, efficient_batch

RANKS = (1, 2)


def case_of(profile: Profile, ranks: int, iterations: int, seed: int) -> Case:
    settings = {
        "seed": seed,
        "iterations": WARM_UP + iterations,
        "rollout": {"prompts": 8, "group_size": 8},
        "explore": {"enabled": "off"},
        "train": {"micro_batch": efficient_batch(profile, Operation.TRAIN_TIMESTEP)},
        "eval": {"every": 1000, "prompts": 8},
        "cluster": {
            "reserved": 1, "slots": ranks, "gang": ranks, "spot": 0, "threads": 1,
            "rows": efficient_batch(profile, Operation.DENOISE_STEP),
        },
        "reward": {"processes": 1},
    }  # fmt: skip
    return Case(settings=settings, recipe="words-nft", profile=profile)


def measured(ranks: int, seed: int, iterations: int, is_shipped: bool, folder: Path) -> tuple[Timing, Timing]:
    """The real run and the simulated one."""
    folder.mkdir()
    profile = Profile.load(CPU_PROFILE) if is_shipped else fresh_profile(folder, beside=ranks - 1)
    real, simulated = compared(case_of(profile, ranks, iterations, seed), folder)
    Console(stderr=True).print(
        f"{ranks} ranks, seed {seed}: {real.iteration:.2f} s per iteration, {simulated.iteration:.2f} s predicted "
        f"(rollout {real.rollout:.2f} and {simulated.rollout:.2f}, training {real.train:.2f} and {simulated.train:.2f})"
    )
    return real, simulated


def figures(seeds: Sequence[int], iterations: int, is_shipped: bool) -> dict[str, Figure]:
    with tempfile.TemporaryDirectory(prefix="gang-") as scratch:
        # Kinds alternate within a seed, so that other load on the host slows both.
        pairs = {
            seed: [measured(ranks, seed, iterations, is_shipped, Path(scratch) / f"{ranks}-{seed}") for ranks in RANKS]
            for seed in seeds
        }
    return summed_up([pairs[seed] for seed in seeds])


def summed_up(runs: Sequence[Sequence[tuple[Timing, Timing]]]) -> dict[str, Figure]:
    found = {}
    for number, ranks in enumerate(RANKS):
        name = f"{ranks}_rank{'s' if ranks > 1 else ''}"
        pairs = [run[number] for run in runs]
        found[f"iteration_s_{name}"] = Figure.median([real.iteration for real, _ in pairs], "seconds per iteration")
        found[f"predicted_s_{name}"] = Figure.median([each.iteration for _, each in pairs], "simulated seconds")
        found[f"train_s_{name}"] = Figure.median([real.train for real, _ in pairs], "seconds of training")
        errors = [100 * (each.iteration / real.iteration - 1) for real, each in pairs]
        found[f"error_{name}"] = Figure.median(errors, "percent: predicted over real iteration, minus 1")
    speedups = [_ratio([real.iteration for real, _ in run]) for run in runs]
    found["speedup"] = Figure.median(speedups, "times: iteration of one rank over that of two")
    found["predicted_speedup"] = Figure.median([_ratio([each.iteration for _, each in run]) for run in runs], "times")
    found["train_speedup"] = Figure.median([_ratio([real.train for real, _ in run]) for run in runs], "times")
    return found


def _ratio(values: Sequence[float]) -> float:
    return values[0] / values[1]
