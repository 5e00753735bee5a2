"""Rewards of previews in several precisions, and how well each ranks the exact rewards."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from benchmarks.lib.figures import Figure
from benchmarks.solvers.run import BATCH, EXACT_STEPS, UNITS, ratios, sums
from spotlight.compute.data.order import PromptOrder
from spotlight.compute.evaluation import generate
from spotlight.compute.fast.fp8 import PreviewSwitch, add_fp8
from spotlight.compute.models import families
from spotlight.compute.rewards.in_process import InProcessScorer
from spotlight.compute.train.recomputation import blocks_of
from spotlight.control.advantage import Floats
from spotlight.core.types import SamplerKind, Sampling

PRECISIONS = ("float32", "bf16", "fp8")
SPEARMAN = {"spearman": "rank correlation within prompts"}
Found = Mapping[str, float]


def measure(family: str, steps: Sequence[int], prompt_count: int, seeds: int, group: int, device: str) -> Found:
    """Figures by name of one set of prompts and seeds."""
    torch.set_num_threads(1 if device != "cpu" else 2)
    adapter = families.load(family, device)
    adapter.transformer.requires_grad_(False)
    world, judge = families.world_of(adapter), InProcessScorer(device)
    taken = PromptOrder(world.prompts("train"), 0).take(group * prompt_count, prompt_count)
    prompts = [prompt for prompt in taken for _ in range(seeds)]
    numbers = list(range(group * seeds, (group + 1) * seeds)) * prompt_count
    precision = PreviewSwitch()

    def rewards(count: int) -> Floats:
        sampling = Sampling(steps=count, size=adapter.native_size, sampler=SamplerKind.ODE)
        images = generate(adapter, prompts, sampling, 0, numbers, BATCH)
        return judge.score(world.reward, images, prompts).total.reshape(prompt_count, seeds)

    exact = rewards(EXACT_STEPS)
    add_fp8(blocks_of(adapter.transformer), precision)
    found: dict[str, float] = {}
    for count in steps:
        for name in PRECISIONS:
            print(f"group {group}: {len(prompts)} previews of {count} steps in {name}", file=sys.stderr, flush=True)
            with MODES[name](precision, device):
                previews = rewards(count)
            by_name = {
                short: float(values[0]) for short, values in ratios(sums(previews, exact).sum(0, keepdims=True)).items()
            }
            by_name["spearman"] = rank_correlation(previews, exact)
            found |= {f"{family}_{count}_{short}_{name}": value for short, value in by_name.items()}
    return found


def rank_correlation(previews: Floats, exact: Floats) -> float:
    """Spearman's correlation, averaged over the prompts whose rewards differ."""
    found = []
    for one, other in zip(previews, exact, strict=True):
        if np.ptp(one) and np.ptp(other):
            found.append(float(np.corrcoef(_ranks(one), _ranks(other))[0, 1]))
    return float(np.mean(found))


def _ranks(rewards: Floats) -> Floats:
    """Ranks; equal rewards share their mean rank."""
    _, places, counts = np.unique(rewards, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[places]


@contextmanager
def _float32(precision: PreviewSwitch, device: str) -> Iterator[None]:
    yield


@contextmanager
def _bf16(precision: PreviewSwitch, device: str) -> Iterator[None]:
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        yield


@contextmanager
def _fp8(precision: PreviewSwitch, device: str) -> Iterator[None]:
    """The numbers that fp8 previews multiply; all else in bf16, as in a model of that type."""
    precision.previews = True
    try:
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            yield
    finally:
        precision.previews = False


MODES: Mapping[str, Callable[[PreviewSwitch, str], AbstractContextManager[None]]] = {
    "float32": _float32,
    "bf16": _bf16,
    "fp8": _fp8,
}


def figures(groups: Sequence[Found]) -> dict[str, Figure]:
    """Mean and range over the groups."""
    return {
        name: Figure.mean([each[name] for each in groups], (UNITS | SPEARMAN)[name.split("_")[-2]])
        for name in groups[0]
    }
