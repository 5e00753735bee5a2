"""Spare processes on a CUDA device, and the devices as the driver reports them."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from live_run import RECIPE, LiveRun
from node_world import spares_of

from spotlight.core.events import Accepted, WorkerJoined
from spotlight.core.work import SlotClass
from spotlight.pools.devices import query

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]


def test_driver_and_torch_report_the_same_devices():
    before, asked, after = query(is_quick=True), query(), query(is_quick=True)
    assert [(each.name, each.model, each.total) for each in before.devices] == [
        (each.name, each.model, each.total) for each in asked.devices
    ]
    # Other processes may take or free memory between the queries.
    for first, between, last in zip(before.devices, asked.devices, after.devices, strict=True):
        assert 0.98 * min(first.free, last.free) <= between.free <= 1.02 * max(first.free, last.free)


def test_opened_device_has_a_context_and_is_the_current_one():
    check = "from spotlight.node.equipment import open_device; open_device('cuda:0'); import torch; "
    shown = "print(torch.cuda.is_initialized(), torch.cuda.current_device())"
    done = subprocess.run([sys.executable, "-c", check + shown], capture_output=True, text=True, check=True)
    initialised, device = done.stdout.split()
    assert (initialised, device) == ("True", "0")


def test_trainer_on_a_gpu_is_replaced_by_the_spare_of_its_node(tmp_path):
    recipe = RECIPE.format(iterations=4).replace("spot: 2", "spot: 0, share_devices: true")
    run = LiveRun(tmp_path, recipe.replace("deterministic: true", "model: {device: cuda}"))
    try:
        run.start()
        trainer = run.wait_for_event(WorkerJoined, lambda event: event.slot_class is SlotClass.RESERVED)
        group = os.getpgid(trainer.pid)
        (spare,) = run.wait_for(lambda: spares_of(group))
        run.wait_for_event(Accepted)
        os.kill(trainer.pid, signal.SIGKILL)
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    joined = [event.pid for event in run.events(WorkerJoined)]
    assert joined == [trainer.pid, spare]
    run.check()
