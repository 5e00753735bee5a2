"""Devices by name, refused with a sentence where they cannot be had."""

import torch

from spotlight.compute.models.config import CUDA, device_of
from spotlight.core.errors import EnvironmentProblem


def usable_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`, if this machine has it."""
    kind, number = device_of(name)
    if kind == CUDA and torch.cuda.device_count() <= (number or 0):
        raise EnvironmentProblem(
            f"the device '{name}' was asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here; use cpu, or install a CUDA build of torch and free a GPU."
        )
    return torch.device(name)
