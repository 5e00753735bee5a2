"""When the clip range of stale samples (of the previous version) moves (tests/unit/test_stale_samples.py).

Clip ranges are so narrow that one version between rollout and training can put most stale rows outside, which silently
ends their gradient. `ClipWatch` tracks the share of clipped rows among stale and fresh ones. The next update depends on
it, so it is part of a checkpoint. It changes only after an optimizer step, so all parts of an update are treated alike.
"""

import math
from collections.abc import Mapping

import torch

from spotlight.control.pipeline.staleness import CLIPPED_FRESH, CLIPPED_STALE

RUNNING_DECAY = 0.9
"""Decay of the running means, per optimizer step that had such rows."""
TOO_OFTEN = 2.0
"""Largest accepted ratio of the clipped share of stale rows to that of fresh ones."""


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
