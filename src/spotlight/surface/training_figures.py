"""Loss, gradient norm and KL of every optimizer step, as the trainer reported them.

Invariant: undone steps do not count (tests/unit/test_training_figures.py).
"""

import math

import msgspec

from spotlight.core.events import AnyEvent, Restored, StepCommitted

SHOWN = ("loss", "grad_norm", "kl")
"""Figures of a step in the report, by the names of `compute/train/role.py`."""


class TrainingView(msgspec.Struct, kw_only=True):
    """Training figures, folded from the journal."""

    steps: dict[int, dict[str, float]] = {}
    """Figures by optimizer step."""

    def apply(self, event: AnyEvent) -> None:
        match event:
            case StepCommitted(step=step, figures=figures):
                self.steps[step] = {name: figures[name] for name in SHOWN if name in figures}
            case Restored(step=step):
                self.steps = {number: kept for number, kept in self.steps.items() if number < step}
            case _:
                pass

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Steps with finite values, in order; empty if all values are 0, as those of a KL without weight."""
        points = [(step, kept.get(name, math.nan)) for step, kept in sorted(self.steps.items())]
        finite = [(step, value) for step, value in points if math.isfinite(value)]
        return finite if any(value for _, value in finite) else []
