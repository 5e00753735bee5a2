"""What an update has seen so far: its loss, and figures that are means over the rows they are of."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotlight.compute.train.objectives import LossRows


@dataclass
class Tally:
    """Sums over the rows of an update, whatever batches and parts they came in."""

    loss: float = 0.0
    rows: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Tensor, part: LossRows) -> None:
        """A batch, with its share of the update's loss."""
        self.loss += float(loss.detach())
        self.rows += len(part.loss_B)
        for name, values in part.figures.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + values.detach().sum().cpu()
            self._counts[name] = self._counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float]:
        """Of the figures that had a row."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items() if self._counts[name]}
