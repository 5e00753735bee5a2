"""Reward processes of this test process."""

import multiprocessing
from multiprocessing.context import SpawnProcess


def reward_processes() -> list[SpawnProcess]:
    """Living children that a `RewardPool` spawned.

    The test process may have another child, which is forked: the nursery of `tests/processes/fork_server.py` lives
    until the test process ends, for all tests that compare with an undisturbed run.
    """
    return [child for child in multiprocessing.active_children() if isinstance(child, SpawnProcess)]
