"""Neighbours of a measurement: at work inside the block, idle outside, and never left behind."""

import sys
from pathlib import Path

import pytest
import torch

from spotlight.compute.profiling.company import Company
from spotlight.compute.profiling.operations import LeftOut, measurements
from spotlight.compute.profiling.slot_at_work import COMMIT_EVERY, SlotAtWork
from spotlight.compute.profiling.stopwatch import Stopwatch
from spotlight.compute.profiling.subject import QUICK_BATCHES, tiny_subject
from spotlight.compute.rollout.engine import Engine
from spotlight.control.profiles import Operation, Times
from spotlight.pools.config import ClusterConfig

WATCH = Stopwatch(device=torch.device("cpu"), repeats=1, patience_s=0.0)
LOGGING = """
import os
order = b"r"
while order:
    os.write(1, order)
    order = os.read(0, 1)
    with open(LOG, "ab") as log:
        log.write(order or b".")
"""
"""Logs its orders, and a full stop when it exits."""
EXITING = """
import os
os.write(1, b"r")
"""
"""Exits at once."""


@pytest.fixture
def neighbours(tmp_path, monkeypatch):
    """Replaces every neighbour by such a program, and returns the log of their orders."""
    log = tmp_path / "orders"
    python = sys.executable

    def are(program: str) -> Path:
        stand_in = tmp_path / "python"
        stand_in.write_text(f"#!{python}\nLOG = {str(log)!r}\n{program}")
        stand_in.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(stand_in))
        return log

    return are


def test_neighbours_work_inside_the_block_rest_outside_and_leave_with_their_owner(neighbours):
    log = neighbours(LOGGING)
    with Company("words", threads=1, members=2) as company:
        assert not log.exists()
        with company.at_work():
            assert log.read_text() == "ww"
        assert log.read_text() == "wwrr"
    assert log.read_text() == "wwrr.."


def test_operations_are_timed_beside_neighbours_only_where_a_run_has_them_at_work(neighbours):
    log = neighbours(LOGGING)
    subject = tiny_subject("words", "cpu", QUICK_BATCHES)
    with Company("words", threads=1, members=1) as company:
        found = measurements(subject, WATCH, [Operation.OPTIMIZER_STEP, Operation.ROLE_SWITCH], company)
        hows = {operation: times.series[0].how for operation, times in found if isinstance(times, Times)}
    assert hows[Operation.OPTIMIZER_STEP].endswith("Beside another slot at work.")
    assert "Beside" not in hows[Operation.ROLE_SWITCH]
    assert log.read_text() == "wr."


def test_operation_whose_neighbour_is_gone_is_left_out_with_the_reason(neighbours):
    neighbours(EXITING)
    subject = tiny_subject("words", "cpu", QUICK_BATCHES)
    with Company("words", threads=1, members=1) as company:
        ((_, outcome),) = measurements(subject, WATCH, [Operation.DECODE], company)
    assert isinstance(outcome, LeftOut)
    assert "lower --beside" in outcome.why


def test_a_slot_at_work_commits_its_samples_as_often_as_a_run(monkeypatch):
    commits = []
    step = Engine.step

    def observed(engine):
        boundary = step(engine)
        commits.append([commit.step for commit in boundary.commits])
        return boundary

    monkeypatch.setattr(Engine, "step", observed)
    subject = tiny_subject("words", "cpu", QUICK_BATCHES)
    assert subject.world is not None
    with SlotAtWork(subject, subject.world) as slot:
        slot.wave(2)
    assert ClusterConfig().commit_every == COMMIT_EVERY
    assert commits == [[step, step] if step % COMMIT_EVERY == 0 and step < 10 else [] for step in range(1, 11)]
