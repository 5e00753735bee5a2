"""A real run: real processes, real kills, the output of `status` meanwhile, and the resulting weights."""

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import spotlight
from live_run import LiveRun

from spotlight.core.events import Accepted, Evaluated, RunResumed, StepCommitted, WorkerLost
from spotlight.core.work import SlotClass

pytestmark = pytest.mark.timeout(600)


def reward_processes(run: LiveRun) -> list[int]:
    """Reward processes of this run: children of its agents that multiprocessing spawned."""
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


def kill_reward_processes(run: LiveRun) -> int:
    """Kill every reward process, as an out-of-memory killer would; returns their number."""
    pids = reward_processes(run)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def test_run_with_workers_trainer_controller_and_rewards_killed_ends_with_every_score_and_undisturbed_weights(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    undisturbed, run = (LiveRun(tmp_path_factory.mktemp(name), iterations=2) for name in ("undisturbed", "killed"))
    try:
        undisturbed.start()
        assert undisturbed.finish() == 0, undisturbed.log()
        run.start()
        # Loaded and idle: no weights are published yet.
        run.wait_for(lambda: len(reward_processes(run)) == 3)
        assert kill_reward_processes(run) == 3
        run.wait_for_event(Accepted)
        status = run.status()
        assert (status["state"], status["pid_alive"], status["reason"]) == ("running", True, None)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        killed_busy = kill_reward_processes(run)
        run.wait_for_event(StepCommitted)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.RESERVED)
        killed_busy += kill_reward_processes(run)
        run.wait_for_event(StepCommitted, lambda event: event.step >= 2)
        run.kill_controller()
        status = run.status()
        assert (status["state"], status["pid_alive"]) == ("dead", False)
        assert "ended without a record" in status["reason"]
        assert "spotlight resume run" in status["reason"]
        run.wait_for(lambda: not run.living())
        run.resume()
        run.wait_for_event(RunResumed)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        assert run.finish() == 0, run.log()
    finally:
        undisturbed.close()
        run.close()
    undisturbed.check()
    run.check()
    assert killed_busy > 0
    assert len(run.events(WorkerLost)) >= 3
    assert all(event.reward == event.reward for event in run.events(Accepted))
    assert all(event.scores for event in run.events(Evaluated))
    assert run.theta() == undisturbed.theta()
    status = run.status()
    assert (status["state"], status["pid_alive"], status["reason"]) == ("finished", False, None)
    again = spotlight("resume", run.run)
    assert again.code == 0
    assert "has done its 2 iterations" in again.err + again.out
    (listed,) = json.loads(spotlight("list", run.folder / "runs", "--json").out)
    assert (listed["run"], listed["state"], listed["iterations"], listed["of"]) == ("run", "finished", 2, 2)
