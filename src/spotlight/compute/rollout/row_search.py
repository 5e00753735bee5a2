"""Measures the best row count of a worker (`cluster.rows: auto`) before its first sample.

The search times forwards of the base model over random latents, at the size, text width and guidance of the recipe;
they dominate a denoising step. `control/batch_size.py` decides which sizes to try and which to choose. A size fits if
its peak memory, with the tensors of the samples in flight and the decoding of one image, is within `spare`.

The search is bounded in time, because a replacement worker should start soon. A size that would take too long to
measure is not tried, so the chosen size may be smaller than the best one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from spotlight.compute.meter import BatchReading, Meter
from spotlight.compute.models.adapter import Adapter, Conditioning
from spotlight.control.batch_size import SizeSearch
from spotlight.core.errors import EnvironmentProblem, PromptError
from spotlight.core.types import Prompt, Size

SEARCH_S = {"cpu": 0.5, "cuda": 4.0}
"""Time limit by kind of device. A small model on a GPU takes below a second; a large one, like any on a CPU, is bound
by arithmetic at its first sizes, gains little, and reaches the limit. On a CPU these are the process's CPU seconds, so
that a busy machine does not end the search at once."""
FIRST = 4
"""First size. Fewer rows seldom take much less time per step on a GPU, so they are tried only if this size does not
fit."""
WARM_UPS, TIMED = 1, (2, 5)
"""Forwards of each size: uncounted ones, then the least and the most that are timed."""
PATIENCE = 2
"""Consecutive sizes that save too little before the search ends; other processes on the device disturb single ones."""
ENOUGH_S = 0.03
"""Timed seconds after which the least number of forwards suffices; short forwards need more against noise."""
SIGMA = 0.5


@dataclass(frozen=True, kw_only=True)
class RolloutShape:
    """The rollouts of a recipe as inputs of the model."""

    size: Size
    guidance: float
    window: int
    """Number of steps whose latents and means a sample holds until it is finished."""
    prompt: Prompt
    """One of the longest prompts."""
    most: int
    """Largest useful row count: a slot's share of an iteration."""


def search_rows(
    adapter: Adapter,
    rollouts: RolloutShape,
    spare: int | None,
    meter: Meter,
    clock: Callable[[], float] | None = None,
) -> int:
    """Return the row count of the best throughput within `spare` bytes of new allocations; None ignores memory."""
    clock = clock or (time.process_time if adapter.device.type == "cpu" else time.perf_counter)
    forwards = _Forwards(adapter, rollouts, meter)
    try:
        limit = forwards.limit(spare)
    except torch.OutOfMemoryError as error:
        raise EnvironmentProblem(
            f"{adapter.device} has too little free memory for a forward of 1 row at {rollouts.size}; stop other "
            "programs on it, or let fewer processes share it."
        ) from error
    search, taken_s = SizeSearch(rollouts.most, FIRST, PATIENCE), 0.0
    ends_at = clock() + SEARCH_S[adapter.device.type]
    while not search.is_settled:
        rows, began = search.candidate, clock()
        # A size takes at most about twice as long as the previous one.
        if began + 2 * taken_s > ends_at:
            search.settle()
            break
        readings = forwards.timed(rows)
        if readings is None or (limit is not None and _peak(readings) + rows * forwards.row_bytes > limit):
            search.too_large()
        else:
            forward_s = min(reading.seconds for reading in readings[WARM_UPS:])
            search.measured(forward_s / rows)
            # Not counted: a compiled model compiles in its warm-up, once per machine and size.
            compiling_s = max(0.0, sum(reading.seconds - forward_s for reading in readings[:WARM_UPS]))
            ends_at += compiling_s
            taken_s = clock() - began - compiling_s
    meter.release()
    return search.chosen


class _Forwards:
    """Timed forwards of the model over equal rows."""

    def __init__(self, adapter: Adapter, rollouts: RolloutShape, meter: Meter) -> None:
        self._adapter = adapter
        self._rollouts = rollouts
        self._meter = meter
        self._shape = adapter.latent_shape(rollouts.size)
        self._cond = adapter.collate([_encoded(adapter, rollouts.prompt)])
        self._uncond = None if rollouts.guidance == 1.0 else adapter.collate([adapter.unconditional()])
        tokens, channels = self._shape
        self.row_bytes = torch.float32.itemsize * tokens * channels * (2 * rollouts.window + 3)
        """Bytes of a sample in flight: its latents before and after a step, and path and means of the window."""

    @torch.no_grad()
    def limit(self, spare: int | None) -> int | None:
        """Bytes that may be allocated in all; also warms the device up, which takes longer than any forward."""
        x0_BSC = self._run(1)
        self._meter.start()
        before = self._meter.stop().peak
        self._meter.start()
        self._adapter.decode(x0_BSC, self._rollouts.size)
        decoding = self._meter.stop().peak - before
        return None if spare is None else before + spare - decoding

    @torch.no_grad()
    def timed(self, rows: int) -> list[BatchReading] | None:
        """Time forwards of `rows` rows, warm-ups first; None if they do not fit the device."""
        readings: list[BatchReading] = []
        least, most = TIMED
        try:
            while len(readings) < WARM_UPS + most:
                self._meter.start()
                self._run(rows)
                readings.append(self._meter.stop())
                counted = readings[WARM_UPS:]
                if len(counted) >= least and sum(reading.seconds for reading in counted) >= ENOUGH_S:
                    break
        except torch.OutOfMemoryError:
            self._meter.release()
            return None
        return readings

    def _run(self, rows: int) -> torch.Tensor:
        device = self._adapter.device
        # Not zeros, which compute faster on some devices.
        drawn = torch.Generator(device).manual_seed(rows)
        x_BSC = torch.randn(rows, *self._shape, generator=drawn, device=device)
        index = torch.zeros(rows, dtype=torch.long, device=device)
        uncond = None if self._uncond is None else self._uncond.rows(index)
        sigma_B = torch.full((rows,), SIGMA, device=device)
        return self._adapter.velocity(
            x_BSC, sigma_B, self._cond.rows(index), uncond, self._rollouts.guidance, self._rollouts.size
        )


def _encoded(adapter: Adapter, prompt: Prompt) -> Conditioning:
    """Encode the prompt, or the negative prompt if it is refused; the engine reports the refusal later."""
    try:
        return adapter.encode([prompt])[0]
    except PromptError:
        return adapter.unconditional()


def _peak(readings: list[BatchReading]) -> int:
    return max(reading.peak for reading in readings)
