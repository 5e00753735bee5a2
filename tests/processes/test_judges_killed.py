"""Reward processes of a live run die, as an out-of-memory killer has it: idle or busy, no sample loses its score."""

import os
import signal
from pathlib import Path

import pytest
from live_run import LiveRun

from spotlight.core.events import Accepted, Evaluated, Issued, StepCommitted

pytestmark = pytest.mark.timeout(600)


def reward_processes(run: LiveRun) -> list[int]:
    """Of the nodes of this run: children of its agents that multiprocessing spawned."""
    agents = run.agents()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in agents and b"spawn_main" in command:
            found.append(int(entry.name))
    return found


def kill_all(run: LiveRun) -> int:
    pids = reward_processes(run)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def test_run_whose_reward_processes_are_killed_idle_and_busy_ends_with_every_score_and_the_same_weights(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    undisturbed, disturbed = (LiveRun(tmp_path_factory.mktemp(name)) for name in ("calm", "killed"))
    undisturbed.start()
    assert undisturbed.finish() == 0, undisturbed.log()
    try:
        disturbed.start()
        # Loaded, and without a picture to score: the weights are not even published.
        disturbed.wait_for(lambda: len(reward_processes(disturbed)) == 3)
        assert kill_all(disturbed) == 3
        disturbed.wait_for_event(Accepted)
        killed = kill_all(disturbed)
        disturbed.wait_for_event(StepCommitted)
        killed += kill_all(disturbed)
        disturbed.wait_for_event(Issued, lambda event: any(r.iteration == 2 for r in event.requests))
        killed += kill_all(disturbed)
        assert disturbed.finish() == 0, disturbed.log()
    finally:
        disturbed.close()
    assert killed > 0
    disturbed.check()
    accepted = disturbed.events(Accepted)
    assert all(event.reward == event.reward for event in accepted)
    assert all(event.scores for event in disturbed.events(Evaluated))
    assert disturbed.theta() == undisturbed.theta()
    assert "Clean" in disturbed.log()
