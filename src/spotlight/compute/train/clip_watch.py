"""Stale samples (of the previous version): which may be trained on, and when their clip range moves.

Invariant: an iteration trains on samples of its own version and the previous one only
(tests/unit/test_training_role.py, tests/unit/test_stale_samples.py).

Clip ranges are so narrow that one version between rollout and training can put most stale rows outside, which silently
ends their gradient. `ClipWatch` tracks the share of clipped rows among stale and fresh ones. The next update depends on
it, so it is part of a checkpoint. It changes only after an optimizer step, so all parts of an update are treated alike.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from spotlight.control.pipeline.staleness import CLIPPED_FRESH, CLIPPED_STALE
from spotlight.core.errors import Stopped
from spotlight.core.types import Sample

RUNNING_DECAY = 0.9
"""Decay of the running means, per optimizer step that had such rows."""
TOO_OFTEN = 2.0
"""Largest accepted ratio of the clipped share of stale rows to that of fresh ones."""


def check_versions(samples: Sequence[Sample], iteration: int, takes_stale: bool) -> None:
    """Refuse samples that this iteration must not train on."""
    oldest = iteration - 1 if takes_stale else iteration
    for sample in samples:
        if not oldest <= sample.version <= iteration:
            allowed = f"{oldest} and {iteration}" if takes_stale else f"{iteration}"
            raise Stopped(
                f"the sample of prompt {sample.prompt}, seed {sample.seed} is of version {sample.version} but "
                f"iteration {iteration} trains on version {allowed} only, because its loss is wrong for others; roll "
                "it out again."
            )


class ClipWatch:
    """Running clip fractions of fresh and of stale rows, both around the policy that drew them."""

    def __init__(self) -> None:
        self.running_2 = torch.full((2,), float("nan"), dtype=torch.float64)
        """Clip fractions of fresh and of stale rows; NaN before the first row."""

    def update(self, figures: Mapping[str, float]) -> None:
        """Add the figures of one optimizer step."""
        for index, name in enumerate((CLIPPED_FRESH, CLIPPED_STALE)):
            if name in figures:
                before, now = float(self.running_2[index]), figures[name]
                self.running_2[index] = now if math.isnan(before) else RUNNING_DECAY * (before - now) + now

    @property
    def decouples(self) -> bool:
        """Whether stale rows are clipped around the iteration's first weights instead of those that drew them."""
        fresh, stale = self.running_2.tolist()
        return bool(stale > TOO_OFTEN * fresh)
