"""What one update trains on: scored samples, and the rows (a sample at one timestep) that losses see.

Rows are plain data, so any batch of rows, in any order, is a legal micro-batch; time-step parallelism is this. Samples
may have different numbers of timesteps: what was recorded of the shorter ones is padded, and padding has no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.rollout.denoise import Rollout, check_guidance
from spotlight.compute.train.config import BatchesOver


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

    def is_stale(self, sample: int) -> bool:
        """Whether it was drawn with the weights of the iteration before."""
        return self.rollout.samples[sample].version == self.iteration - 1


@dataclass(frozen=True)
class Row:
    """Sample `sample` at its `place`-th trained timestep."""

    sample: int
    place: int


def kept_rows(experience: Experience, samples: Sequence[int], places: int | Sequence[int]) -> list[Row]:
    """All rows of these samples, sample-major; the order of accumulation is by sample, never by arrival.

    `places` is how many timesteps each sample of the experience is trained at, or one number for all.
    """
    kept = experience.kept_B.tolist()
    counts = [places] * len(experience) if isinstance(places, int) else places
    return [Row(sample, place) for sample in samples if kept[sample] for place in range(counts[sample])]


def runs(rows: Sequence[Row], over: BatchesOver) -> list[list[Row]]:
    """The rows in stretches that are cut into batches, each by itself."""
    if over is BatchesOver.PAIRS:
        return [list(rows)]
    by_place: dict[int, list[Row]] = {}
    for row in rows:
        by_place.setdefault(row.place, []).append(row)
    return [by_place[place] for place in sorted(by_place)]


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Several batches of one iteration as one; windows of fewer steps are padded at their end."""
    longest = max(rollout.log_prob_BK.shape[1] for rollout in rollouts)
    latents = longest + 1 if longest else 0
    return Rollout(
        samples=tuple(sample for rollout in rollouts for sample in rollout.samples),
        x0_BSC=torch.cat([rollout.x0_BSC for rollout in rollouts]),
        path_BKSC=torch.cat([_padded(rollout.path_BKSC, latents) for rollout in rollouts]),
        log_prob_BK=torch.cat([_padded(rollout.log_prob_BK, longest) for rollout in rollouts]),
        mean_BKSC=torch.cat([_padded(rollout.mean_BKSC, longest) for rollout in rollouts]),
    )


def on_device(rollout: Rollout, device: torch.device) -> Rollout:
    return replace(
        rollout,
        x0_BSC=rollout.x0_BSC.to(device),
        path_BKSC=rollout.path_BKSC.to(device),
        log_prob_BK=rollout.log_prob_BK.to(device),
        mean_BKSC=rollout.mean_BKSC.to(device),
    )


def _padded(recorded_BK: Tensor, size: int) -> Tensor:
    missing = size - recorded_BK.shape[1]
    if not missing:
        return recorded_BK
    return torch.cat([recorded_BK, recorded_BK.new_zeros(len(recorded_BK), missing, *recorded_BK.shape[2:])], dim=1)
