"""What can be known to be wrong with a run before anything is written or started; free of torch.

`spotlight train`, `resume` and `train --dry-run` call `preflight`. Checks run in order of cost, and the first that
fails raises: an InputError (exit code 2), or an EnvironmentProblem (3). A paced run has no model that reads prompts, no
real reward and no checkpoints to speak of, so only the checks of its processes apply; to a simulation none do.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spotlight.pools.devices import DeviceTable
from spotlight.preflight.inputs import check_prompts, check_prompts_and_reward
from spotlight.preflight.planned_run import Check, PlannedRun
from spotlight.preflight.this_machine import check_disk, check_folder, check_open_files, check_sockets
from spotlight.run import devices_of

__all__ = ["Check", "PlannedRun", "preflight"]

PATIENCE_S = 2.0
"""A check that takes longer is announced."""

OF_PROCESSES: tuple[Check, ...] = (
    Check("the run folder", check_folder),
    Check("the sockets", check_sockets),
    Check("the limit on open files", check_open_files),
)
OF_WHAT_IS_COMPUTED: tuple[Check, ...] = (
    Check("the free disk space", check_disk),
    Check("the prompts", check_prompts),
    Check("the reward", check_prompts_and_reward),
)


def checks_of(subject: PlannedRun) -> tuple[Check, ...]:
    is_paced = subject.config.cluster.pace is not None
    return OF_PROCESSES if is_paced else (*OF_PROCESSES, *OF_WHAT_IS_COMPUTED)


def preflight(subject: PlannedRun, tell: Callable[[str], None]) -> DeviceTable:
    """Raise for the first thing that is wrong; `tell` gets a line for every remark, and for checks that take long.

    Returns the devices of the run's slots, which it had to find.
    """
    with _announced("the devices", tell):
        devices = devices_of(subject.config)
    for check in checks_of(subject):
        with _announced(check.label, tell):
            for remark in check.run(subject):
                tell(remark)
    return devices


@contextmanager
def _announced(label: str, tell: Callable[[str], None]) -> Iterator[None]:
    timer = threading.Timer(PATIENCE_S, tell, [f"checking {label} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
