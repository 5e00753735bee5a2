"""Held-out scores and sampling speed of the shipped base models."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

from benchmarks.lib.figures import Figure
from spotlight.compute.evaluation import evaluate, generate
from spotlight.compute.models import families
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.scores import Estimate
from spotlight.core.types import Sampling

STEPS = 10
SPEED_BATCH = 32
SPEED_ROUNDS = 3
COUNTS = {"words": 210, "words-large": 210, "scenes": 384}


def images_per_second(family: str) -> float:
    """One process, one thread: the best of a few batches, so that other load on the host is not measured."""
    torch.set_num_threads(1)
    adapter = families.load(family)
    prompts = families.world_of(adapter).held_out(SPEED_BATCH)
    sampling = Sampling(steps=STEPS, size=adapter.native_size)
    durations = []
    for _ in range(SPEED_ROUNDS):
        started = time.perf_counter()
        generate(adapter, prompts, sampling, 0, range(SPEED_BATCH), SPEED_BATCH)
        durations.append(time.perf_counter() - started)
    return SPEED_BATCH / min(durations)


def speed_of_all_cores(family: str) -> float:
    """Sum of the speeds of one single-threaded process per core, as workers run."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as executor:
        return sum(executor.map(images_per_second, [family] * cores))


def figures() -> dict[str, Figure]:
    torch.set_num_threads(os.cpu_count() or 1)
    found: dict[str, Estimate] = {}
    with RewardPool(os.cpu_count() or 1) as pool:
        for family, count in COUNTS.items():
            print(f"evaluating {family} on {count} held-out prompts", file=sys.stderr)
            adapter = families.load(family)
            world = families.world_of(adapter)
            sampling = Sampling(steps=STEPS, size=adapter.native_size)
            scored = evaluate(adapter, world.held_out(count), sampling, [world.reward, world.judge], pool)
            name, scores = family.replace("-", "_"), scored.figures()
            found[f"{name}_{'overall' if family == 'scenes' else 'exact'}"] = scores[
                "geneval" if family == "scenes" else "exact"
            ]
            found[f"{name}_graded"] = scores["reward"]
            found[f"{name}_judge"] = scores["judge"]
    unit = "score, 95 % interval over prompts"
    result = {name: Figure(value=e.value, low=e.low, high=e.high, unit=unit) for name, e in found.items()}
    for family in ("words", "scenes"):
        print(f"timing {family}", file=sys.stderr)
        result[f"{family}_images_per_s"] = Figure.single(speed_of_all_cores(family), "images/s, all cores")
    return result
