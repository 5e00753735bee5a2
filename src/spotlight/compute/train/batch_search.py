"""Row count of the trainer's forwards: a fixed number, or one found while training.

The search measures the run's own batches, so it costs no extra work. `control/batch_size.py` decides which sizes to try
and which to choose; a size fits if its peak memory is within 90 % of the device's. The memory plan gives the first size
and the largest one (`compute/memory/choices.py`), so that a batch that is too large is the exception.

Invariant: a batch that runs out of memory leaves nothing in the gradient and is retried smaller
(tests/unit/test_batch_search.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from spotlight.compute.fast.fast_model import CanBeFast
from spotlight.compute.meter import BatchReading, Meter
from spotlight.compute.models.adapter import Adapter
from spotlight.control.batch_size import SizeSearch

Made = TypeVar("Made")

WARM_UPS, TIMED = 1, 2
"""Batches of each size: uncounted ones, which allocate and tune kernels, and timed ones."""
MEMORY_SHARE = 0.9
"""Usable share of the device's memory: prompts differ in length, and the allocator needs room between its blocks."""


class RowsPerForward(Protocol):
    """Decides the size of each batch and runs it."""

    def size(self, left: int) -> int:
        """Return the row count of the next batch when `left` rows remain."""

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        """Return the result of `backward`; None if it did not fit and its rows must run again."""


@dataclass(frozen=True)
class FixedRows:
    rows: int

    def size(self, left: int) -> int:
        return min(self.rows, left)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        return backward()


@dataclass(frozen=True)
class PowersOfTwo:
    """Cuts every batch to a power of two, because a compiled model takes half a minute for each new size."""

    sizes: RowsPerForward

    def size(self, left: int) -> int:
        return 1 << (self.sizes.size(left).bit_length() - 1)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        return self.sizes.run(rows, backward)


class BatchSearch:
    """Finds the size; `parameters` are those whose gradients the batches add to."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], meter: Meter, most: int | None = None, first: int = 1
    ) -> None:
        """`most` is the largest size that fits, None if that is unknown; the search begins with `first` rows."""
        self._parameters = list(parameters)
        self._meter = meter
        self._sizes = SizeSearch(most, first)
        self._readings: list[BatchReading] = []
        self._agreed: int | None = None

    @property
    def chosen(self) -> int:
        """Best size found so far, or the size that all ranks agreed on."""
        return self._sizes.chosen if self._agreed is None else self._agreed

    @property
    def is_settled(self) -> bool:
        """Whether the search has ended."""
        return self._sizes.is_settled

    def agree(self, rows: int) -> None:
        """Use this size, the least that a rank chose."""
        self._agreed = rows

    def size(self, left: int) -> int:
        if self._sizes.is_settled:
            return min(self.chosen, left)
        if self._sizes.candidate <= left:
            return self._sizes.candidate
        # Before the first measurement no size is chosen.
        return min(self.chosen if self._sizes.is_measured else self._sizes.candidate, left)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        if self._sizes.is_settled or rows != self._sizes.candidate:
            return backward()
        # Set aside, because a backward that fails half-way has already added to some gradients.
        before = [parameter.grad for parameter in self._parameters]
        self._set_gradients([None] * len(before))
        self._meter.start()
        made: Made | None = None
        try:
            made = backward()
        except torch.OutOfMemoryError:
            if rows == 1:
                raise
        if made is None:
            self._set_gradients(before)
            self._meter.release()
            self._sizes.too_large()
            return None
        self._note(self._meter.stop())
        self._set_gradients(
            [_sum(old, parameter.grad) for old, parameter in zip(before, self._parameters, strict=True)]
        )
        return made

    def _set_gradients(self, gradients: Iterable[Tensor | None]) -> None:
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


def sized_for(adapter: Adapter, sizes: RowsPerForward) -> RowsPerForward:
    """The same sizes, or powers of two for a compiled model."""
    is_compiled = isinstance(adapter, CanBeFast) and adapter.fast is not None
    return PowersOfTwo(sizes) if is_compiled else sizes


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)
