"""Cost of a checkpoint for the trainer: it waits for a copy of its state, and is slower while the copy is written."""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from spotlight.compute.profiling.subject import ProfiledModel
from spotlight.compute.train import checkpoint

ALONE = 6
"""Training steps timed before the checkpoint."""


@dataclass(frozen=True)
class TimedCheckpoint:
    """Times of one checkpoint, and of training steps before it and during its writing."""

    alone_s: list[float]
    beside_s: list[float]
    held_s: float
    """Seconds that the trainer waits for the copy."""
    written_s: float
    """Seconds from the end of the copy until it is on disk."""

    @property
    def step_s(self) -> float:
        return statistics.median(self.alone_s)

    @property
    def lost_s(self) -> float:
        """Total extra seconds of the steps during the writing."""
        return max(0.0, sum(self.beside_s) - len(self.beside_s) * self.step_s)

    @property
    def slowdown(self) -> float:
        return statistics.mean(self.beside_s) / self.step_s


def write_beside(subject: ProfiledModel, train: Callable[[], object], folder: Path) -> TimedCheckpoint:
    """Train until the checkpoint is on disk, as a fully loaded run does."""
    device = subject.adapter.device
    alone_s = [_timed(device, train) for _ in range(ALONE)]
    taken: list[checkpoint.TrainerSnapshot] = []
    held_s = _timed(device, lambda: taken.append(checkpoint.snapshot(subject.trainer, subject.base_digest)))
    ended: list[float] = []

    def write() -> None:
        checkpoint.write(taken[0], folder / "step")
        ended.append(time.perf_counter())

    writing = threading.Thread(target=write)
    began = time.perf_counter()
    writing.start()
    beside_s = [_timed(device, train)]
    while writing.is_alive():
        beside_s.append(_timed(device, train))
    writing.join()
    return TimedCheckpoint(alone_s, beside_s, held_s, ended[0] - began)


def _timed(device: torch.device, action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
