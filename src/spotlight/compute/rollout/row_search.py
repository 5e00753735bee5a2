"""How many rows a worker rolls out at a time (`cluster.rows: auto`), measured before it takes its first sample.

Timed are forwards of the base model over made-up latents, at the size, text width and guidance of the recipe: they
dominate a denoising step. Which sizes are tried and which is chosen is decided in `control/batch_size.py`. A size fits
if its peak memory, with what the samples in flight keep and one picture that is decoded beside, is within `spare`.

The search is bounded in time: a worker that replaces another one should be back soon. A size that would take too long
to measure is not tried, so the largest size that was measured may be chosen although a larger one is better.
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
"""By kind of device. A small model on a GPU takes below a second; a large one is bound by arithmetic at its first
sizes, and the limit ends its search. A CPU is so too and has little to gain; there, seconds are those that this process
computes, so that a busy machine does not end the search at once."""
FIRST = 4
"""Fewer rows take about as long per step on any GPU (`saturating_rows` of the scheduler): tried only if these do not
fit."""
WARM_UPS, TIMED = 1, (2, 5)
"""Forwards of each size that do not count, and that do: at least and at most."""
PATIENCE = 2
"""Sizes in a row that save too little before the search ends: other processes of the run compute on the same device."""
ENOUGH_S = 0.03
"""Seconds of forwards after which no more than the least are timed; short ones need more against noise."""
SIGMA = 0.5


@dataclass(frozen=True, kw_only=True)
class Rolled:
    """What the rollouts of a recipe look like to the model."""

    size: Size
    guidance: float
    window: int
    """Steps whose latents and means a sample keeps until it is finished."""
    prompt: Prompt
    """One as long as any."""
    most: int
    """Rows beyond which more are of no use: a slot's share of an iteration."""


def search_rows(
    adapter: Adapter,
    rolled: Rolled,
    spare: int | None,
    meter: Meter,
    clock: Callable[[], float] | None = None,
) -> int:
    """Rows of the best throughput within `spare` bytes beyond what is allocated now; None does not count memory."""
    clock = clock or (time.process_time if adapter.device.type == "cpu" else time.perf_counter)
    forwards = _Forwards(adapter, rolled, meter)
    try:
        limit = forwards.limit(spare)
    except torch.OutOfMemoryError as error:
        raise EnvironmentProblem(
            f"{adapter.device} has too little memory free for a forward of 1 row at {rolled.size}; end what else runs "
            "on it, or let fewer processes share it."
        ) from error
    search, taken_s = SizeSearch(rolled.most, FIRST, PATIENCE), 0.0
    ends_at = clock() + SEARCH_S[adapter.device.type]
    while not search.is_settled:
        rows, began = search.candidate, clock()
        # A size takes at most about twice as long as the one before.
        if began + 2 * taken_s > ends_at:
            search.settle()
            break
        readings = forwards.timed(rows)
        if readings is None or (limit is not None and _peak(readings) + rows * forwards.row_bytes > limit):
            search.too_large()
        else:
            search.measured(min(reading.seconds for reading in readings[WARM_UPS:]) / rows)
            taken_s = clock() - began
    meter.release()
    return search.chosen


class _Forwards:
    """The model over rows that are all alike."""

    def __init__(self, adapter: Adapter, rolled: Rolled, meter: Meter) -> None:
        self._adapter = adapter
        self._rolled = rolled
        self._meter = meter
        self._shape = adapter.latent_shape(rolled.size)
        self._cond = adapter.collate([_encoded(adapter, rolled.prompt)])
        self._uncond = None if rolled.guidance == 1.0 else adapter.collate([adapter.unconditional()])
        tokens, channels = self._shape
        self.row_bytes = torch.float32.itemsize * tokens * channels * (2 * rolled.window + 3)
        """Kept by a sample in flight: its latents before and after a step, and path and means of the window."""

    @torch.no_grad()
    def limit(self, spare: int | None) -> int | None:
        """Bytes that may be allocated in all; the device gets ready meanwhile, which takes longer than any forward."""
        x0_BSC = self._run(1)
        self._meter.start()
        before = self._meter.stop().peak
        self._meter.start()
        self._adapter.decode(x0_BSC, self._rolled.size)
        decoding = self._meter.stop().peak - before
        return None if spare is None else before + spare - decoding

    @torch.no_grad()
    def timed(self, rows: int) -> list[BatchReading] | None:
        """Forwards of so many rows, the first of which do not count; None where they do not fit the device."""
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
        # Not zeros: on some devices these compute faster.
        drawn = torch.Generator(device).manual_seed(rows)
        x_BSC = torch.randn(rows, *self._shape, generator=drawn, device=device)
        index = torch.zeros(rows, dtype=torch.long, device=device)
        uncond = None if self._uncond is None else self._uncond.rows(index)
        sigma_B = torch.full((rows,), SIGMA, device=device)
        return self._adapter.velocity(
            x_BSC, sigma_B, self._cond.rows(index), uncond, self._rolled.guidance, self._rolled.size
        )


def _encoded(adapter: Adapter, prompt: Prompt) -> Conditioning:
    """A prompt that the model cannot take is refused where it is to be drawn, not here."""
    try:
        return adapter.encode([prompt])[0]
    except PromptError:
        return adapter.unconditional()


def _peak(readings: list[BatchReading]) -> int:
    return max(reading.peak for reading in readings)
