"""Which solver ranks seeds better at the same cost: Euler steps of the ODE (ode) or second-order ones (ode2)?

    python -m benchmarks.solvers [--families words scenes] [--steps 4 5] [--prompts 24] [--seeds 32] [--device cpu]
        [--json]

The base model draws the same seeds of the same prompts exactly (10 Euler steps) and as previews of both solvers, which
take one forward a step each. Of every prompt the previews keep a quarter of the seeds, those with the largest variance.
- payoff: variance of the kept seeds' exact rewards over that of all; a random choice scores 1.
- captured: that variance over the largest that any choice has.
- pearson: correlation of preview and exact rewards within prompts.
- gain: ode2 minus ode in `captured`, prompt by prompt the same pictures.

Intervals are 95 % of resampled prompts.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from spotlight.control.advantage import Floats
from spotlight.control.explore.select import Preview, largest_variance, select
from spotlight.core.types import SamplerKind, Sampling

EXACT_STEPS = 10
BATCH = 64
RESAMPLED = 1000
UNITS = {
    "payoff": "variance of kept over random seeds",
    "captured": "share of the largest variance",
    "pearson": "correlation within prompts",
    "gain": "captured by ode2 - captured by ode",
}
Figure: TypeAlias = dict[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Rewards of previews and of the exact pictures of the same seeds; one row per prompt."""

    family: str
    steps: int
    exact: Floats
    previews: Mapping[SamplerKind, Floats]


def measure(family: str, preview_steps: Sequence[int], prompt_count: int, seeds: int, device: str) -> Iterator[Ranked]:
    import torch

    from spotlight.compute.data.order import PromptOrder
    from spotlight.compute.evaluation import generate
    from spotlight.compute.models import families
    from spotlight.compute.rewards.in_process import InProcessScorer

    torch.set_num_threads(1)
    adapter = families.load(family, device)
    world, judge = families.world_of(adapter), InProcessScorer(device)
    order = PromptOrder(world.prompts("train"), 0)
    prompts = [prompt for prompt in order.take(0, prompt_count) for _ in range(seeds)]

    def rewards(steps: int, solver: SamplerKind) -> Floats:
        print(f"{family}: {len(prompts)} pictures of {steps} steps by {solver.value}", file=sys.stderr, flush=True)
        sampling = Sampling(steps=steps, size=adapter.native_size, sampler=solver)
        images = generate(adapter, prompts, sampling, 0, list(range(seeds)) * prompt_count, BATCH)
        return judge.score(world.reward, images, prompts).total.reshape(prompt_count, seeds)

    exact = rewards(EXACT_STEPS, SamplerKind.ODE)
    for steps in preview_steps:
        previews = {solver: rewards(steps, solver) for solver in (SamplerKind.ODE, SamplerKind.ODE2)}
        yield Ranked(family=family, steps=steps, exact=exact, previews=previews)


def sums(previews: Floats, exact: Floats) -> Floats:
    """One row per prompt; figures are ratios of their sums, as those of an audit that leaves no seed out."""
    rows = []
    for proxy_G, exact_G in zip(previews, exact, strict=True):
        size = len(proxy_G) // 4
        seeds = select([Preview(seed, float(reward)) for seed, reward in enumerate(proxy_G)], size)
        kept, covariance = exact_G[list(seeds)], np.cov(proxy_G, exact_G)
        best = largest_variance(exact_G, size)
        rows.append([kept.var(ddof=1), kept.var(), best, covariance[0, 1], covariance[0, 0], covariance[1, 1]])
    return np.array(rows)


def ratios(summed_XN: Floats) -> dict[str, Floats]:
    """Of any number of sums over prompts."""
    kept, kept_population, best, covariance, variance_proxy, variance_exact = summed_XN.T
    return {
        "payoff": kept / variance_exact,
        "captured": kept_population / best,
        "pearson": covariance / np.sqrt(variance_proxy * variance_exact),
    }


def figures(ranked: Ranked) -> dict[str, Figure]:
    name, prompts = f"{ranked.family}_{ranked.steps}", len(ranked.exact)
    drawn = np.random.default_rng(0).integers(prompts, size=(RESAMPLED, prompts))
    # All prompts once come first.
    rows = np.concatenate([np.arange(prompts)[None], drawn])
    found = {solver: ratios(sums(proxy, ranked.exact)[rows].sum(1)) for solver, proxy in ranked.previews.items()}
    shown = {
        f"{name}_{short}_{solver.value}": figure(values, UNITS[short])
        for solver, by_name in found.items()
        for short, values in by_name.items()
    }
    gain = found[SamplerKind.ODE2]["captured"] - found[SamplerKind.ODE]["captured"]
    return shown | {f"{name}_gain": figure(gain, UNITS["gain"])}


def figure(values: Floats, unit: str) -> Figure:
    """The first value, and the interval of the others."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return {"value": float(values[0]), "low": float(low), "high": float(high), "unit": unit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=["words", "scenes"])
    parser.add_argument("--steps", nargs="+", type=int, default=[4, 5])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=32, help="of each prompt; a quarter is kept")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/solvers"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from benchmarks.lib.provenance import provenance

    found: dict[str, Figure] = {}
    for family in args.families:
        for ranked in measure(family, args.steps, args.prompts, args.seeds, args.device):
            found |= figures(ranked)
    summary = {"benchmark": "solvers", **provenance(), "seeds": [0], "figures": found}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    table = Table("figure", "value", "low", "high", "unit", title=f"{summary['hardware']}, {summary['commit']}")
    for name, each in found.items():
        table.add_row(name, *(f"{each[key]:.3f}" for key in ("value", "low", "high")), str(each["unit"]))
    Console().print(table)
    if args.json:
        print(json.dumps(summary))
