"""Time-step parallelism on a CUDA device: batches of (sample, timestep) pairs of any size give one gradient."""

import pytest
import torch

from spotlight.compute.data.worlds import world
from spotlight.compute.models import families
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.train.config import FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.types import Sample, SamplerKind, Sampling, Version, Window

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = "cuda"
SAMPLES, TIMESTEPS = 4, 4


@pytest.fixture(autouse=True)
def _full_fp32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def trained(algorithm) -> tuple[Trainer, Experience]:
    """Samples whose windows begin at different steps, so that no batch has one timestep for all."""
    adapter = families.build(families.read_weights("words"), DEVICE)
    trainer = Trainer(adapter, TrainConfig(micro_batch=1), algorithm, run_seed=0)
    prompts = world("words").held_out(SAMPLES)
    samples = [
        Sample(
            prompt=prompt.id,
            seed=number,
            sampling=Sampling(
                steps=10,
                size=adapter.native_size,
                sampler=SamplerKind.FLOW_SDE,
                noise_level=0.7,
                window=Window(1 + number, TIMESTEPS),
            ),
            version=Version(0),
        )
        for number, prompt in enumerate(prompts)
    ]
    cond = adapter.collate(adapter.encode(prompts))
    return trainer, Experience(
        rollout=roll_out(adapter, samples, cond, None, 0),
        cond=cond,
        uncond=None,
        advantage_B=torch.linspace(-1, 1, SAMPLES, device=DEVICE),
        kept_B=torch.ones(SAMPLES, dtype=torch.bool, device=DEVICE),
        iteration=0,
    )


def gradient(trainer: Trainer, experience: Experience, rows: int, over: BatchesOver) -> torch.Tensor:
    trainer.train_config = TrainConfig(micro_batch=rows, batches_over=over)
    trainer.begin(SAMPLES)
    trainer.add(experience, range(SAMPLES))
    weights = trainer.sets.theta.values()
    return torch.cat([weight.grad.flatten().double() for weight in weights if weight.grad is not None])


# A wide clip: batch sizes differ in the last bits, and the usual clip could stop a row at one size only.
@pytest.mark.parametrize(
    "algorithm", [NftConfig(timesteps_per_sample=TIMESTEPS), FlowGrpoConfig(clip=0.2)], ids=["nft", "flow_grpo"]
)
def test_batches_of_timesteps_on_a_device_add_up_to_the_gradient_of_one_row_at_a_time(algorithm):
    trainer, experience = trained(algorithm)
    alone = gradient(trainer, experience, 1, BatchesOver.SAMPLES)
    assert float(alone.norm()) > 0
    for rows in (2, 3, SAMPLES * TIMESTEPS):
        together = gradient(trainer, experience, rows, BatchesOver.PAIRS)
        assert float((together - alone).norm() / alone.norm()) < 1e-4
