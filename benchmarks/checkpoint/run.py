"""Rounds of training steps with and without a checkpoint write at the same time."""

import tempfile
from pathlib import Path

import torch

from benchmarks.lib.figures import Figure
from spotlight.compute.models.families import usable_device
from spotlight.compute.profiling.provenance import use_tf32, use_threads
from spotlight.compute.profiling.subject import QWEN_IMAGE, ProfiledModel, random_qwen_image, tiny_subject
from spotlight.compute.profiling.workload import backward
from spotlight.compute.profiling.writing import write_beside
from spotlight.core.types import Size


def subject_of(model: str, device: str) -> ProfiledModel:
    if model == QWEN_IMAGE:
        use_tf32(True)
        return random_qwen_image(torch.device(device), Size(512, 512))
    return tiny_subject(model, device)


def figures(model: str, device: str, batch: int, count: int) -> dict[str, Figure]:
    usable_device(device)
    use_threads(8 if device == "cuda" else 1)
    subject = subject_of(model, device)
    train = backward(subject, batch)
    train()
    subject.trainer.optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [write_beside(subject, train, Path(folder)) for _ in range(count)]
    values = {
        "held_s": ([each.held_s for each in rounds], "s that the trainer is held"),
        "lost_s": ([each.lost_s for each in rounds], "s that steps take longer while it is written, in all"),
        "written_s": ([each.written_s for each in rounds], "s from the copy until it is on disk"),
        "slowdown": ([each.slowdown for each in rounds], "times as long is a step while it is written, mean"),
        "step_s": ([each.step_s for each in rounds], "s of a step without it"),
    }
    return {name: Figure.median(measured, unit) for name, (measured, unit) in values.items()}
