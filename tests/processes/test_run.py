"""A real run: real processes, kills and broken connections, the output of `status` meanwhile, and the weights."""

import json
import os
import signal
from pathlib import Path

import pytest
from command_line import spotlight
from live_run import PATIENCE_S, LiveRun
from relays import Relay

from spotlight.core.events import Accepted, Evaluated, NodeLost, RunResumed, StepCommitted, WorkerJoined, WorkerLost
from spotlight.core.work import SlotClass

pytestmark = pytest.mark.timeout(600)
LONG_S = 280.0
"""Time for a run of 40 iterations."""


def finished(run: LiveRun, patience_s: float = PATIENCE_S) -> LiveRun:
    try:
        assert run.finish(patience_s) == 0, run.log()
    finally:
        run.close()
    run.check()
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    run = LiveRun(tmp_path_factory.mktemp("undisturbed"), iterations=2, is_lent=True)
    run.start()
    return finished(run)


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
    undisturbed: LiveRun, tmp_path: Path
) -> None:
    run = LiveRun(tmp_path, iterations=2)
    try:
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
        # In mid-rollout of the second iteration.
        run.wait_for(lambda: len(run.committed_flights(iteration=1)) > 1)
        run.kill_controller()
        committed = run.committed_flights(iteration=1)
        status = run.status()
        assert (status["state"], status["pid_alive"]) == ("dead", False)
        assert "ended without a record" in status["reason"]
        assert f"spotlight resume {run.folder / 'runs' / 'run'}" in status["reason"]
        run.wait_for(lambda: not run.living())
        run.resume()
        run.wait_for_event(RunResumed)
        run.wait_for(lambda: set(committed) <= set(run.first_leases()))
        assert {request: run.first_leases()[request] for request in committed} == committed
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    run.check()
    assert killed_busy > 0
    assert committed
    assert min(committed.values()) > 0
    assert not (run.run / "flights").exists()
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


def assert_unharmed(broken: LiveRun, faults: int, seed: int, plain: LiveRun, patience_s: float = PATIENCE_S) -> None:
    """While this many connections break, no worker is lost, and the weights are those of the plain run."""
    relay = Relay(broken.door)
    broken.start_relayed(dict.fromkeys(("reserved-1", "spot-1", "spot-2"), relay.port))
    relay.disturb(faults, seed)
    finished(broken, patience_s)
    relay.close()
    assert relay.counts.total() == faults, "the run ended before all connections were broken"
    assert broken.theta() == plain.theta()
    assert broken.events(WorkerLost) == []
    assert broken.events(NodeLost) == []
    assert len(broken.events(WorkerJoined)) == len(plain.events(WorkerJoined))


@pytest.mark.slow
def test_run_over_breaking_connections_is_the_undisturbed_run_to_the_last_bit(
    undisturbed: LiveRun, tmp_path: Path
) -> None:
    assert_unharmed(LiveRun(tmp_path, iterations=2), 12, 6, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_run_over_a_hundred_broken_connections_is_the_undisturbed_run_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plain, broken = (LiveRun(tmp_path_factory.mktemp(name), iterations=40) for name in ("plain", "broken"))
    plain.start()
    finished(plain, LONG_S)
    assert_unharmed(broken, 100, 40, plain, LONG_S)
