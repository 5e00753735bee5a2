"""Devices by name, refused with a sentence where they cannot be had."""

import torch

from spotlight.core.errors import EnvironmentProblem, InputError, suggestion

KINDS = ("cpu", "cuda")


def usable_device(name: str) -> torch.device:
    """`cpu`, `cuda` or `cuda:N`, if this machine has it."""
    kind, _, index = name.partition(":")
    if kind not in KINDS or (index and not index.isdecimal()):
        raise InputError(f"there is no device '{name}': {suggestion(kind, KINDS)}")
    if kind == "cuda" and torch.cuda.device_count() <= int(index or 0):
        raise EnvironmentProblem(
            f"the device '{name}' was asked for, but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA "
            "devices here; use cpu, or install a CUDA build of torch and free a GPU."
        )
    return torch.device(name)
