"""Rewards of previews by both solvers and of the exact pictures, and the quality of the previews' ranking."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.lib.figures import Figure
from spotlight.control.advantage import Floats
from spotlight.control.explore.seeds import Preview, largest_variance, select
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


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Rewards of previews and of the exact pictures of the same seeds; one row per prompt."""

    family: str
    steps: int
    exact: Floats
    previews: Mapping[SamplerKind, Floats]


def measure(family: str, preview_steps: Sequence[int], prompt_count: int, seeds: int, device: str) -> Iterator[Ranked]:
    # Imported here, because the figures do not need them.
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
    """One row per prompt; figures are ratios of their sums, as in an audit of all seeds."""
    rows = []
    for proxy_G, exact_G in zip(previews, exact, strict=True):
        size = len(proxy_G) // 4
        seeds = select([Preview(seed, float(reward)) for seed, reward in enumerate(proxy_G)], size)
        kept, covariance = exact_G[list(seeds)], np.cov(proxy_G, exact_G)
        best = largest_variance(exact_G, size)
        rows.append([kept.var(ddof=1), kept.var(), best, covariance[0, 1], covariance[0, 0], covariance[1, 1]])
    return np.array(rows)


def ratios(summed_XN: Floats) -> dict[str, Floats]:
    """Figures from sums over prompts, for any number of samples of them."""
    kept, kept_population, best, covariance, variance_proxy, variance_exact = summed_XN.T
    return {
        "payoff": kept / variance_exact,
        "captured": kept_population / best,
        "pearson": covariance / np.sqrt(variance_proxy * variance_exact),
    }


def figures(ranked: Ranked) -> dict[str, Figure]:
    name, prompts = f"{ranked.family}_{ranked.steps}", len(ranked.exact)
    drawn = np.random.default_rng(0).integers(prompts, size=(RESAMPLED, prompts))
    # First all prompts once, then the resampled ones.
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
    return Figure(value=float(values[0]), low=float(low), high=float(high), unit=unit)
