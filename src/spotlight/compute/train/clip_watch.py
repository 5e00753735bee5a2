"""Samples of the version before: which may be trained on, and when their clip range moves.

Invariant: nothing that was drawn more than one version ago, or with weights yet to come, is trained on
(tests/unit/test_training_role.py, tests/unit/test_stale_samples.py).

Clip ranges are so narrow that one version between drawing and training can put most stale rows outside, which ends
their gradient without a word. `ClipWatch` follows how often that happens to stale and to fresh rows. It is state that
the next step depends on, so it is part of a checkpoint; it moves only when a step was taken, so the parts of one step
are all treated alike.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from spotlight.control.pipeline.staleness import CLIPPED_FRESH, CLIPPED_STALE
from spotlight.core.errors import Stopped
from spotlight.core.types import Sample

RUNNING_DECAY = 0.9
"""Of the running means, per optimizer step that had such rows."""
TOO_OFTEN = 2.0
"""Stale rows beyond the clip for each fresh one."""


def check_versions(samples: Sequence[Sample], iteration: int, takes_stale: bool) -> None:
    """Refuse samples that this iteration must not train on."""
    oldest = iteration - 1 if takes_stale else iteration
    for sample in samples:
        if not oldest <= sample.version <= iteration:
            allowed = f"{oldest} and {iteration}" if takes_stale else f"{iteration}"
            raise Stopped(
                f"the sample of prompt {sample.prompt}, seed {sample.seed} was drawn with version {sample.version} but "
                f"iteration {iteration} trains on version {allowed} only, since older samples mislead it; draw it "
                "again."
            )


class ClipWatch:
    """Running clip fractions of fresh and of stale rows, both around the policy that drew them."""

    def __init__(self) -> None:
        self.running_2 = torch.full((2,), float("nan"), dtype=torch.float64)
        """Of fresh and of stale rows; NaN before the first."""

    def stepped(self, figures: Mapping[str, float]) -> None:
        """Take in the figures of one step."""
        for place, name in enumerate((CLIPPED_FRESH, CLIPPED_STALE)):
            if name in figures:
                before, now = float(self.running_2[place]), figures[name]
                self.running_2[place] = now if math.isnan(before) else RUNNING_DECAY * (before - now) + now

    @property
    def decouples(self) -> bool:
        """Whether stale rows are clipped around the iteration's first weights instead of their own."""
        fresh, stale = self.running_2.tolist()
        return bool(stale > TOO_OFTEN * fresh)
