"""What one update trains on: scored samples, and the rows (a sample at one timestep) that losses see.

Rows are plain data, so any batch of rows, in any order, is a legal micro-batch; time-step parallelism is this.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.rollout.denoise import Rollout, check_guidance


@dataclass(frozen=True, kw_only=True)
class Experience:
    """Finished samples of whole groups with their advantages; row i of every tensor is sample i."""

    rollout: Rollout
    cond: ConditionBatch
    uncond: ConditionBatch | None
    advantage_B: Tensor
    kept_B: Tensor
    """False where the reward was not finite: such a sample is not trained on."""
    iteration: int

    def __post_init__(self) -> None:
        check_guidance(self.rollout.samples, self.uncond)

    def __len__(self) -> int:
        return len(self.rollout.samples)


@dataclass(frozen=True)
class Row:
    """Sample `sample` at its `place`-th trained timestep."""

    sample: int
    place: int


def kept_rows(experience: Experience, samples: Sequence[int], places: int) -> list[Row]:
    """All rows of these samples, sample-major; the order of accumulation is by sample, never by arrival."""
    kept = experience.kept_B.tolist()
    return [Row(sample, place) for sample in samples if kept[sample] for place in range(places)]


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Several batches of one iteration as one."""
    return Rollout(
        samples=tuple(sample for rollout in rollouts for sample in rollout.samples),
        x0_BSC=torch.cat([rollout.x0_BSC for rollout in rollouts]),
        path_BKSC=torch.cat([rollout.path_BKSC for rollout in rollouts]),
        log_prob_BK=torch.cat([rollout.log_prob_BK for rollout in rollouts]),
        mean_BKSC=torch.cat([rollout.mean_BKSC for rollout in rollouts]),
    )
