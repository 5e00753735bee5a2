"""Seconds and peak memory of computations on a device."""

import time
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class BatchReading:
    """Cost of one batch."""

    seconds: float
    peak: int
    """Peak of all allocated bytes."""


class Meter(Protocol):
    """Times batches on a device."""

    memory: int | None
    """Bytes of the device; None where a batch that is too large is only slow."""

    def start(self) -> None: ...

    def stop(self) -> BatchReading: ...

    def release(self) -> None:
        """Free cached blocks, after a failed allocation or after the last large batch."""


class DeviceMeter:
    """The clock and the allocator of a torch device.

    A CPU is timed by the wall clock, or by this process's CPU seconds (`own`), which exclude the random delays of other
    processes on the same cores.
    """

    def __init__(self, device: torch.device, own: bool = False) -> None:
        self._device = device
        self._counts = device.type == "cuda"
        self._clock = time.process_time if own and not self._counts else time.perf_counter
        self.memory = torch.cuda.get_device_properties(device).total_memory if self._counts else None
        self._began = 0.0

    def start(self) -> None:
        if self._counts:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        self._began = self._clock()

    def stop(self) -> BatchReading:
        if not self._counts:
            return BatchReading(self._clock() - self._began, 0)
        torch.cuda.synchronize(self._device)
        return BatchReading(self._clock() - self._began, torch.cuda.max_memory_allocated(self._device))

    def release(self) -> None:
        if self._counts:
            torch.cuda.empty_cache()
