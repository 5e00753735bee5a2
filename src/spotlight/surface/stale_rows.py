"""Samples that were one version old when they were trained on: how many, and how they differed from fresh ones.

Invariant: steps that were undone do not count (tests/unit/test_stale_view.py).
"""

import math

import msgspec

from spotlight.control.pipeline.staleness import OF_STALENESS
from spotlight.core.events import AnyEvent, Issued, Restored, StepCommitted
from spotlight.core.work import Work


class StaleView(msgspec.Struct, kw_only=True):
    """A fold of the journal."""

    rollouts: int = 0
    """Of iterations that could have stale ones: all but the first."""
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
                told = {name: figures[name] for name in sorted(OF_STALENESS & figures.keys())}
                if told:
                    self.steps[step] = told
            case Restored(step=step):
                self.steps = {number: told for number, told in self.steps.items() if number < step}
            case _:
                pass

    @property
    def share(self) -> float:
        """Of the rollouts that could be stale."""
        return self.stale / self.rollouts if self.rollouts else 0.0

    def mean(self, name: str) -> float | None:
        """Over the steps that have such rows."""
        values = [told[name] for told in self.steps.values() if math.isfinite(told.get(name, math.nan))]
        return math.fsum(values) / len(values) if values else None
