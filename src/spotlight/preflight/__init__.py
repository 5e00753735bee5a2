"""Checks of a run before anything is written or started; does not import torch.

`spotlight train`, `resume` and `train --dry-run` call `preflight`. Checks run in order of cost, and the first failure
raises: an InputError (exit code 2) or an EnvironmentProblem (3). A paced run has no model, no real reward and no large
checkpoints, so only the checks of its processes apply. A simulation has no checks.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotlight.config import RunConfig
from spotlight.pools.devices import DeviceTable
from spotlight.preflight.inputs import check_prompts, check_prompts_and_reward
from spotlight.preflight.memory_check import RunMemory, check_memory, run_memory
from spotlight.preflight.planned_run import Check, PlannedRun
from spotlight.preflight.this_machine import (
    check_disk,
    check_folder,
    check_gang_port,
    check_open_files,
    check_ray,
    check_sockets,
    check_trackers,
)
from spotlight.run import devices_of

__all__ = ["Check", "PlannedRun", "RunMemory", "memory_of", "preflight"]

ANNOUNCE_AFTER_S = 2.0
"""A check that takes longer is announced."""

PROCESS_CHECKS: tuple[Check, ...] = (
    Check("the run folder", check_folder),
    Check("the sockets", check_sockets),
    Check("the port of the training ranks", check_gang_port),
    Check("the limit on open files", check_open_files),
    Check("the packages of trackers", check_trackers),
    Check("the Ray cluster", check_ray),
)
COMPUTE_CHECKS: tuple[Check, ...] = (
    Check("the free disk space", check_disk),
    Check("the prompts", check_prompts),
    Check("the reward", check_prompts_and_reward),
)


def checks_of(subject: PlannedRun) -> tuple[Check, ...]:
    is_paced = subject.config.cluster.pace is not None
    return PROCESS_CHECKS if is_paced else (*PROCESS_CHECKS, *COMPUTE_CHECKS)


def preflight(
    subject: PlannedRun, report: Callable[[str], None], show: Callable[[RunMemory], None] | None = None
) -> tuple[RunConfig, DeviceTable]:
    """Run all checks and raise the first failure; `report` receives every remark and a line for slow checks, and
    `show` the whole memory plan, in place of its remarks.

    Returns the settings, with the way to train that the memory plan chose, and the devices of the run's slots, with the
    memory of each.
    """
    config = subject.config
    with _announced("the devices", report):
        devices = devices_of(subject.config)
    if subject.config.cluster.pace is None:
        memory = memory_of(subject, devices)
        for line in memory.sentences() if show is None else ():
            report(line)
        if show is not None:
            show(memory)
        warning = check_memory(memory)
        if warning:
            report(warning)
        config, devices = memory.config, memory.table
    for check in checks_of(subject):
        with _announced(check.label, report):
            for remark in check.run(subject):
                report(remark)
    return config, devices


def memory_of(subject: PlannedRun, devices: DeviceTable) -> RunMemory:
    """The memory plan of a run on these devices."""
    return run_memory(subject.config, subject.facts, subject.prompts.longest.text, devices)


@contextmanager
def _announced(label: str, report: Callable[[str], None]) -> Iterator[None]:
    timer = threading.Timer(ANNOUNCE_AFTER_S, report, [f"checking {label} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
