"""How many rows a forward takes: a fixed number, or one that is found while training.

    MEASURING --twice the rows save less than 5 %, or do not fit--> SETTLED

Measured are real batches of the run, so no work is done for the search alone; their size doubles from 1. Chosen is the
smallest size whose time per row is within 5 % of the best and whose peak memory is within 90 % of the device's.

Invariant: a batch that ran out of memory leaves nothing in the gradient and is tried again smaller
(tests/unit/test_batch_search.py).
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

Made = TypeVar("Made")

WARM_UPS, TIMED = 1, 2
"""Batches of each size: the first allocates and tunes kernels, and is not counted."""
WORTH = 0.05
"""Share of the time per row that counts as a difference."""
MEMORY_SHARE = 0.9
"""Of the device: prompts differ in length, and the allocator needs room between its blocks."""


@dataclass(frozen=True)
class Reading:
    """One batch."""

    seconds: float
    peak: int
    """Bytes allocated at most, in all."""


class Meter(Protocol):
    """Times batches on a device."""

    memory: int | None
    """Bytes of the device; None where a batch that is too large shows in nothing but its time."""

    def start(self) -> None: ...

    def stop(self) -> Reading: ...

    def release(self) -> None:
        """After a failed allocation: give cached blocks back."""


class DeviceMeter:
    """The clock and the allocator of a torch device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counts = device.type == "cuda"
        self.memory = torch.cuda.get_device_properties(device).total_memory if self._counts else None
        self._began = 0.0

    def start(self) -> None:
        if self._counts:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began = time.perf_counter()

    def stop(self) -> Reading:
        if not self._counts:
            return Reading(time.perf_counter() - self._began, 0)
        torch.cuda.synchronize(self._device)
        return Reading(time.perf_counter() - self._began, torch.cuda.max_memory_allocated(self._device))

    def release(self) -> None:
        if self._counts:
            torch.cuda.empty_cache()


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
        self._candidate = 1
        self._readings: list[Reading] = []
        self._seconds_per_row: dict[int, float] = {}
        """Of the sizes that fit."""
        self._is_settled = False

    @property
    def chosen(self) -> int:
        """The size as far as is known."""
        if not self._seconds_per_row:
            return 1
        best = min(self._seconds_per_row.values())
        return min(size for size, seconds in self._seconds_per_row.items() if seconds <= best * (1 + WORTH))

    def size(self, left: int) -> int:
        is_next = not self._is_settled and self._candidate <= left
        return self._candidate if is_next else min(self.chosen, left)

    def run(self, rows: int, backward: Callable[[], Made]) -> Made | None:
        if self._is_settled or rows != self._candidate:
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
            self._is_settled = True
            return None
        self._note(self._meter.stop())
        self._put([_sum(old, parameter.grad) for old, parameter in zip(kept, self._parameters, strict=True)])
        return made

    def _put(self, gradients: Iterable[Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient

    def _note(self, reading: Reading) -> None:
        self._readings.append(reading)
        if len(self._readings) < WARM_UPS + TIMED:
            return
        size, half = self._candidate, self._candidate // 2
        seconds = min(reading.seconds for reading in self._readings[WARM_UPS:]) / size
        peak = max(reading.peak for reading in self._readings)
        self._readings.clear()
        if self._meter.memory is not None and peak > MEMORY_SHARE * self._meter.memory:
            self._is_settled = True
            return
        self._seconds_per_row[size] = seconds
        self._is_settled = half in self._seconds_per_row and seconds > (1 - WORTH) * self._seconds_per_row[half]
        self._candidate = 2 * size


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)
