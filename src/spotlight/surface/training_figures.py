"""Loss, gradient norm and KL of every optimizer step, as the trainer reported them.

Invariant: steps that were undone do not count (tests/unit/test_training_figures.py).
"""

import math

import msgspec

from spotlight.core.events import AnyEvent, Restored, StepCommitted

SHOWN = ("loss", "grad_norm", "kl")
"""Figures of a step that the report draws; `compute/train/role.py` names them."""


class TrainingView(msgspec.Struct, kw_only=True):
    """A fold of the journal."""

    steps: dict[int, dict[str, float]] = {}
    """Figures by optimizer step."""

    def apply(self, event: AnyEvent) -> None:
        match event:
            case StepCommitted(step=step, figures=figures):
                self.steps[step] = {name: figures[name] for name in SHOWN if name in figures}
            case Restored(step=step):
                self.steps = {number: told for number, told in self.steps.items() if number < step}
            case _:
                pass

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Step and value, in order, where the value is finite; empty where it is always 0, as a KL without weight."""
        points = [(step, told.get(name, math.nan)) for step, told in sorted(self.steps.items())]
        finite = [(step, value) for step, value in points if math.isfinite(value)]
        return finite if any(value for _, value in finite) else []
