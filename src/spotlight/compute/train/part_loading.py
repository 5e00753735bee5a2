"""From the items of a Train order to the tensors of this rank's share.

Samples are grouped by the width of their text, so that a forward pads a prompt to the width that its rollout had.
Another width sums attention in another order: in bf16 that moves log-probs by more than a clip range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from spotlight.compute.models.adapter import Adapter, Conditioning
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.rollout.flight import join_payloads
from spotlight.compute.rollout.sealed import SealError
from spotlight.compute.train.experience import Experience, joined, on_device
from spotlight.compute.train.part import PartPlan
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import Prompt
from spotlight.core.work import Request

HOST = torch.device("cpu")


@dataclass(frozen=True)
class ItemGroups:
    """Items by width, the narrowest first, and the conditioning of each prompt."""

    items: Sequence[Sequence[m.TrainItem]]
    conditionings: Mapping[Prompt, Conditioning]


class PartLoader:
    """Reads the payloads of samples from the run's folder."""

    def __init__(self, adapter: Adapter, run_folder: Path) -> None:
        self._adapter = adapter
        self._run_folder = run_folder

    def groups(self, items: Sequence[m.TrainItem]) -> ItemGroups:
        """Group items by width, without their tensors; equal on all ranks."""
        prompts = list(dict.fromkeys(item.prompt for item in items))
        conditionings = dict(zip(prompts, self._adapter.encode(prompts), strict=True))
        width_of = {prompt: self._adapter.collate([cond]).mask.shape[1] for prompt, cond in conditionings.items()}
        widths: dict[int, list[m.TrainItem]] = {}
        for item in items:
            widths.setdefault(width_of[item.prompt], []).append(item)
        return ItemGroups([widths[width] for width in sorted(widths)], conditionings)

    def experiences(self, groups: ItemGroups, plan: PartPlan, iteration: int) -> list[Experience | None]:
        """Read the samples that the plan needs, group by group."""
        needed = [plan.needed(group) for group in range(len(groups.items))]
        return [
            self._of_one_width([items[place] for place in places], groups.conditionings, iteration) if places else None
            for items, places in zip(groups.items, needed, strict=True)
        ]

    def _of_one_width(
        self, items: Sequence[m.TrainItem], conditionings: Mapping[Prompt, Conditioning], iteration: int
    ) -> Experience:
        device = self._adapter.device
        requests = [item.request for item in items]
        payloads = [self._run_folder / item.payload for item in items]
        # One by one, because windows may differ in length.
        read = [_rollout(request, path) for request, path in zip(requests, payloads, strict=True)]
        cond = self._adapter.collate([conditionings[item.prompt] for item in items])
        uncond = None
        if requests[0].sample.sampling.guidance != 1.0:
            uncond = self._adapter.collate([self._adapter.unconditional()] * len(requests))
        return Experience(
            rollout=on_device(joined(read), device),
            cond=cond,
            uncond=uncond,
            advantage_B=torch.tensor([item.advantage for item in items], device=device),
            kept_B=torch.tensor([item.kept for item in items], device=device),
            iteration=iteration,
        )


def _rollout(request: Request, path: Path) -> Rollout:
    """The tensors of one sample; raises Stopped if they are lost or damaged, because a resumed run makes them again."""
    try:
        return join_payloads([request], [path], HOST)
    except SealError as problem:
        why = str(problem).rstrip(".")
        raise Stopped(f"{request.id} cannot be trained on ({why}); `spotlight resume` makes it again.") from problem
