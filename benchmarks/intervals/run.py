"""The evaluation of `scenes`, and its figures with both kinds of interval."""

import os
from dataclasses import replace

import torch

from benchmarks.lib.figures import Figure
from spotlight.compute.evaluation import evaluate
from spotlight.compute.models import families
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.scores import Estimate, Evaluation
from spotlight.core.types import Sampling

FAMILY, STEPS = "scenes", 10


def evaluation(count: int) -> Evaluation:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    adapter = families.load(FAMILY)
    world = families.world_of(adapter)
    with RewardPool(1) as pool:
        sampling = Sampling(steps=STEPS, size=adapter.native_size)
        return evaluate(adapter, world.held_out(count), sampling, [world.reward], pool)


def by_picture(scored: Evaluation) -> dict[str, Estimate]:
    """Intervals as if every picture had its own prompt."""
    prompts = tuple(
        type(prompt)(text=f"{number}: {prompt.text}", target=prompt.target, scene=prompt.scene)
        for number, prompt in enumerate(scored.prompts)
    )
    return replace(scored, prompts=prompts).figures()


def prompts_of(scored: Evaluation, name: str) -> int:
    """Number of distinct prompts of a figure."""
    tags = {prompt.scene.tag for prompt in scored.prompts if prompt.scene is not None}
    counted = [p for p in scored.prompts if name not in tags or (p.scene is not None and p.scene.tag == name)]
    return len({prompt.id for prompt in counted})


def figures(scored: Evaluation) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    plain = by_picture(scored)
    for name, estimate in scored.figures().items():
        found[name] = figure_of(estimate, f"score, 95 % interval over {prompts_of(scored, name)} prompts")
        found[f"{name}_by_picture"] = figure_of(plain[name], "score, 95 % interval over pictures")
    return found


def figure_of(estimate: Estimate, unit: str) -> Figure:
    return Figure(value=estimate.value, low=estimate.low, high=estimate.high, unit=unit)
