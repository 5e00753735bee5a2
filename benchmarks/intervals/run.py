"""Held-out intervals of the shipped `scenes` weights, clustered by prompt and as if all pictures were independent.

    python -m benchmarks.intervals [--count 384] [--json] [--out docs/results/intervals]      # a minute on one core

Both columns are of the same pictures and scores. `NAME` is what `spotlight evaluate scenes --count 384` prints;
`NAME_by_picture` is the interval that treats every picture as a prompt of its own.
"""

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotlight.compute.held_out import Estimate, Evaluation

FAMILY, STEPS = "scenes", 10


def evaluation(count: int) -> "Evaluation":
    import torch

    from spotlight.compute.evaluation import evaluate
    from spotlight.compute.models import families
    from spotlight.compute.rewards.pool import RewardPool
    from spotlight.core.types import Sampling

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    adapter = families.load(FAMILY)
    world = families.world_of(adapter)
    with RewardPool(1) as pool:
        sampling = Sampling(steps=STEPS, size=adapter.native_size)
        return evaluate(adapter, world.held_out(count), sampling, [world.reward], pool)


def by_picture(scored: "Evaluation") -> "dict[str, Estimate]":
    """The same scores, each of a prompt of its own."""
    prompts = tuple(
        type(prompt)(text=f"{number}: {prompt.text}", target=prompt.target, scene=prompt.scene)
        for number, prompt in enumerate(scored.prompts)
    )
    return replace(scored, prompts=prompts).figures()


def prompts_of(scored: "Evaluation", name: str) -> int:
    """Distinct prompts that a figure is over."""
    tags = {prompt.scene.tag for prompt in scored.prompts if prompt.scene is not None}
    asked = [p for p in scored.prompts if name not in tags or (p.scene is not None and p.scene.tag == name)]
    return len({prompt.id for prompt in asked})


def figures(scored: "Evaluation") -> dict[str, dict[str, float | str]]:
    def told(figure: "Estimate", unit: str) -> dict[str, float | str]:
        return {"value": figure.value, "low": figure.low, "high": figure.high, "unit": unit}

    found: dict[str, dict[str, float | str]] = {}
    plain: Mapping[str, Estimate] = by_picture(scored)
    for name, figure in scored.figures().items():
        found[name] = told(figure, f"score, 95 % interval over {prompts_of(scored, name)} prompts")
        found[f"{name}_by_picture"] = told(plain[name], "score, 95 % interval over pictures")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=384, help="held-out pictures")
    parser.add_argument("--out", type=Path, default=Path("runs/intervals"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    # Heavy imports wait until here: the reward process imports this file again and needs none of them.
    from rich.console import Console
    from rich.table import Table

    from benchmarks.lib.provenance import provenance

    scored = evaluation(args.count)
    found = figures(scored)
    summary = {"benchmark": "intervals", **provenance(), "seeds": [0], "pictures": args.count, "figures": found}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    table = Table("figure", "value", "by prompt", "by picture", "prompts", title=f"{args.count} pictures of {FAMILY}")
    for name, figure in scored.figures().items():
        other = found[f"{name}_by_picture"]
        intervals = [
            f"{low:.3f} .. {high:.3f}" for low, high in ((figure.low, figure.high), (other["low"], other["high"]))
        ]
        table.add_row(name, f"{figure.value:.3f}", *intervals, str(prompts_of(scored, name)))
    Console().print(table)
    if args.json:
        print(json.dumps(summary))
