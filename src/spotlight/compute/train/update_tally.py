"""Sums over the rows of an update, across its batches and parts, and across ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spotlight.compute.train.objectives import LossRows


@dataclass
class UpdateTally:
    """Sums over the rows of an update."""

    loss: float = 0.0
    rows: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Tensor, part: LossRows) -> None:
        """Add a batch with its share of the update's loss."""
        self.loss += float(loss.detach())
        self.rows += len(part.loss_B)
        for name, values in part.figures.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + values.detach().sum().cpu()
            self._counts[name] = self._counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float]:
        """Means of the figures that have at least one row."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items() if self._counts[name]}

    def plain(self) -> dict[str, Any]:
        """The sums as plain numbers, for other ranks."""
        sums = {name: float(total) for name, total in self._sums.items()}
        return {"loss": self.loss, "rows": self.rows, "sums": sums, "counts": self._counts}

    @classmethod
    def total(cls, parts: Sequence[dict[str, Any]]) -> "UpdateTally":
        """Sum over the ranks, in float64 and in the order of the ranks."""
        whole = cls(sum(part["loss"] for part in parts), sum(part["rows"] for part in parts))
        for part in parts:
            for name, value in part["sums"].items():
                whole._sums[name] = whole._sums.get(name, torch.zeros((), dtype=torch.float64)) + value
                whole._counts[name] = whole._counts.get(name, 0) + part["counts"][name]
        return whole
