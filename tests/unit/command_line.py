"""The `spotlight` command in this process, and random weights for it to work on."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from spotlight.compute.models.families import spec_of
from spotlight.compute.weights import files
from spotlight.surface.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def spotlight(*arguments: str | Path) -> Outcome:
    """Run `spotlight ARGUMENTS` and return what it prints and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["spotlight", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


def write_random_weights(path: Path, family: str) -> Path:
    """A weights file of an untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        files.write(path, family, {name: t.bfloat16() for name, t in spec_of(family).build().state_dict().items()})
    return path
