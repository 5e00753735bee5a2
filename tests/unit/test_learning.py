"""Both losses really learn: a tiny model grows brighter when brightness is rewarded, and darker when darkness is."""

import msgspec
import numpy as np
import pytest
import torch
from tiny_models import PROMPTS, RUN_SEED, conditions, rolled_out, sample_of, tiny_adapter, tiny_sampling

from spotlight.compute.train.config import FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.control.advantage import StdMode, group_advantages
from spotlight.core.types import SamplerKind, Window

GROUP = 8
ITERATIONS = 12
SAMPLINGS = {
    "nft": tiny_sampling(),
    "flow_grpo": tiny_sampling(SamplerKind.FLOW_SDE, Window(0, 3)),
}
ALGORITHMS = {"nft": NftConfig(timesteps_per_sample=4), "flow_grpo": FlowGrpoConfig(clip=1e-2)}


def brightness(rollout):
    return rollout.x0_BSC.mean(dim=(1, 2)).double().numpy()


def iterate(trainer, sampling, iteration, sign):
    """One iteration of the plainest loop; returns the mean brightness of its rollouts."""
    seeds = range(iteration * GROUP, (iteration + 1) * GROUP)
    samples = [sample_of(prompt, seed, sampling) for prompt in PROMPTS for seed in seeds]
    if sampling.sampler is not SamplerKind.ODE:
        samples = [msgspec.structs.replace(sample, shared_start=seeds[0]) for sample in samples]
    with trainer.sets.using(trainer.behaviour):
        rollout = rolled_out(trainer.adapter, samples)
    rewards = sign * brightness(rollout).reshape(len(PROMPTS), GROUP)
    groups = group_advantages(list(rewards), std_mode=StdMode.GROUP, eps=1e-4)
    experience = Experience(
        rollout=rollout,
        cond=conditions(trainer.adapter, samples),
        uncond=None,
        advantage_B=torch.tensor(np.concatenate([group.advantages for group in groups])).float(),
        kept_B=torch.tensor(np.concatenate([group.kept for group in groups])),
        iteration=iteration,
    )
    trainer.run_iteration(experience, [range(g * GROUP, (g + 1) * GROUP) for g in range(len(PROMPTS))])
    return float(brightness(rollout).mean())


@pytest.mark.parametrize(
    ("loss", "sign"),
    [
        ("nft", 1.0),
        ("flow_grpo", -1.0),
        pytest.param("nft", -1.0, marks=pytest.mark.slow),
        pytest.param("flow_grpo", 1.0, marks=pytest.mark.slow),
    ],
)
def test_training_on_a_reward_moves_the_policy_towards_it(loss, sign):
    trainer = Trainer(tiny_adapter(), TrainConfig(lr=2e-3, micro_batch=64), ALGORITHMS[loss], RUN_SEED)
    means = [iterate(trainer, SAMPLINGS[loss], iteration, sign) for iteration in range(ITERATIONS)]
    spread = float(np.std(brightness(rolled_out(tiny_adapter(), [
        sample_of(PROMPTS[0], seed, SAMPLINGS[loss]) for seed in range(16)
    ]))))  # fmt: skip
    assert sign * (np.mean(means[-3:]) - means[0]) > 2 * spread
