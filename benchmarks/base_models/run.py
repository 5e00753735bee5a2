"""The shipped base models: held-out scores at 10 steps without guidance, and sampling speed on this machine.

python -m benchmarks.base_models [--json] [--out docs/results/base-models]
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

STEPS = 10
SPEED_BATCH = 32
SPEED_ROUNDS = 3
COUNTS = {"words": 210, "words-large": 210, "scenes": 384}


def images_per_second(family: str) -> float:
    """One process, one thread: the best of a few batches, so that a busy neighbour is not measured."""
    import torch

    from spotlight.compute.evaluation import generate
    from spotlight.compute.models import families
    from spotlight.core.types import Sampling

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
    """One single-threaded process per core, as workers run; the sum of their speeds."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as executor:
        return sum(executor.map(images_per_second, [family] * cores))


def figures() -> dict[str, dict[str, float | str]]:
    import torch

    from spotlight.compute.evaluation import evaluate
    from spotlight.compute.held_out import Estimate
    from spotlight.compute.models import families
    from spotlight.compute.rewards.pool import RewardPool
    from spotlight.core.types import Sampling

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
    result: dict[str, dict[str, float | str]] = {
        name: {"value": e.value, "low": e.low, "high": e.high, "unit": "score, 95 % interval over prompts"}
        for name, e in found.items()
    }
    for family in ("words", "scenes"):
        print(f"timing {family}", file=sys.stderr)
        speed = speed_of_all_cores(family)
        result[f"{family}_images_per_s"] = {"value": speed, "low": speed, "high": speed, "unit": "images/s, all cores"}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/base-models"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from benchmarks.lib.provenance import provenance

    summary = {"benchmark": "base_models", **provenance(), "seeds": [0], "figures": figures()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    table = Table("figure", "value", "low", "high", "unit", title=f"{summary['hardware']}, {summary['commit']}")
    for name, figure in summary["figures"].items():
        table.add_row(name, *(f"{figure[key]:.3f}" for key in ("value", "low", "high")), str(figure["unit"]))
    Console().print(table)
    if args.json:
        print(json.dumps(summary))
