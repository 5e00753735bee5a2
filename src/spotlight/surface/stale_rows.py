"""Samples that were one version old when they were trained on: their share, and their difference from fresh ones.

Invariant: undone steps do not count (tests/unit/test_stale_view.py).
"""

import math

import msgspec

from spotlight.control.pipeline.staleness import OF_STALENESS
from spotlight.core.events import AnyEvent, Issued, Restored, StepCommitted
from spotlight.core.work import Work


class StaleView(msgspec.Struct, kw_only=True):
    """Counts and figures of stale samples."""

    rollouts: int = 0
    """Rollouts of all iterations but the first, which cannot have stale ones."""
    stale: int = 0
    steps: dict[int, dict[str, float]] = {}
    """Figures by optimizer step."""

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Issued(requests=requests):
                for request in requests:
                    if request.work is Work.ROLLOUT and request.iteration:
                        self.rollouts += 1
                        self.stale += request.sample.version < request.iteration
            case StepCommitted(step=step, figures=figures):
                kept = {name: figures[name] for name in sorted(OF_STALENESS & figures.keys())}
                if kept:
                    self.steps[step] = kept
            case Restored(step=step):
                self.steps = {number: kept for number, kept in self.steps.items() if number < step}
            case _:
                pass

    @property
    def share(self) -> float:
        """Stale share of the rollouts that could be stale."""
        return self.stale / self.rollouts if self.rollouts else 0.0

    def mean(self, name: str) -> float | None:
        """Mean of a figure over the steps that have it."""
        values = [kept[name] for kept in self.steps.values() if math.isfinite(kept.get(name, math.nan))]
        return math.fsum(values) / len(values) if values else None
