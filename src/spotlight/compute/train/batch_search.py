"""How many rows a forward of the trainer takes: a fixed number, or one that is found while training.

Measured are real batches of the run, so no work is done for the search alone. Which sizes are tried and which is chosen
is decided in `control/batch_size.py`; a size fits if its peak memory is within 90 % of the device's.

Invariant: a batch that ran out of memory leaves nothing in the gradient and is tried again smaller
(tests/unit/test_batch_search.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from spotlight.compute.meter import BatchReading, Meter
from spotlight.control.batch_size import SizeSearch

Made = TypeVar("Made")

WARM_UPS, TIMED = 1, 2
"""Batches of each size: the first allocates and tunes kernels, and is not counted."""
MEMORY_SHARE = 0.9
"""Of the device: prompts differ in length, and the allocator needs room between its blocks."""


class RowsPerForward(Protocol):
    """Decides the size of each batch and runs it."""

    def size(self, left: int) -> int:
        """Rows of the next batch, of `left` that there are."""

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        """What `backward` made; None where it did not fit and its rows are still to be done."""


@dataclass(frozen=True)
class FixedRows:
    rows: int

    def size(self, left: int) -> int:
        return min(self.rows, left)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        return backward()


class BatchSearch:
    """Finds the size; `parameters` are those whose gradients the batches add to."""

    def __init__(self, parameters: Iterable[nn.Parameter], meter: Meter) -> None:
        self._parameters = list(parameters)
        self._meter = meter
        self._sizes = SizeSearch()
        self._readings: list[BatchReading] = []

    @property
    def chosen(self) -> int:
        """The size as far as is known."""
        return self._sizes.chosen

    def size(self, left: int) -> int:
        is_next = not self._sizes.is_settled and self._sizes.candidate <= left
        return self._sizes.candidate if is_next else min(self.chosen, left)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        if self._sizes.is_settled or rows != self._sizes.candidate:
            return backward()
        # Aside, because a backward that fails half-way has added to some gradients already.
        kept = [parameter.grad for parameter in self._parameters]
        self._put([None] * len(kept))
        self._meter.start()
        made: Made | None = None
        try:
            made = backward()
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
        if made is None:
            self._put(kept)
            self._meter.release()
            self._sizes.too_large()
            return None
        self._note(self._meter.stop())
        self._put([_sum(old, parameter.grad) for old, parameter in zip(kept, self._parameters, strict=True)])
        return made

    def _put(self, gradients: Iterable[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def _note(self, reading: BatchReading) -> None:
        self._readings.append(reading)
        if len(self._readings) < WARM_UPS + TIMED:
            return
        seconds = min(reading.seconds for reading in self._readings[WARM_UPS:])
        peak = max(reading.peak for reading in self._readings)
        self._readings.clear()
        if self._meter.memory is not None and peak > MEMORY_SHARE * self._meter.memory:
            self._sizes.too_large()
        else:
            self._sizes.measured(seconds / self._sizes.candidate)


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)
