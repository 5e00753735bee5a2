"""Gives each test process one core and whole files, and lets the interpreters that tests start keep their bytecode."""

import os

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without bytecode each of some hundred interpreters would compile torch anew, which takes it 7 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file's tests run in one process: what they share is made once."""
    return LoadFileScheduling(config, log)
