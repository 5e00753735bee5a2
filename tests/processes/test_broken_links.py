"""Connections between agents and the controller break again and again; nothing is lost, and no worker restarts."""

import json
from pathlib import Path

import pytest
from live_run import LiveRun

from spotlight.core.events import NodeLost, WorkerJoined, WorkerLost

PATIENCE_S = 280.0


def finished_run(folder: Path, iterations: int, faults: int) -> LiveRun:
    folder.mkdir()
    run = LiveRun(folder, iterations=iterations)
    try:
        if faults:
            run.start_proxied(faults, seed=iterations)
        else:
            run.start()
        assert run.finish(PATIENCE_S) == 0, run.log()
    finally:
        run.close()
    run.check()
    return run


@pytest.mark.parametrize(
    ("iterations", "faults"), [(6, 12), pytest.param(40, 100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_run_over_breaking_connections_is_the_undisturbed_run_to_the_last_bit(tmp_path, iterations, faults):
    plain = finished_run(tmp_path / "plain", iterations, faults=0)
    broken = finished_run(tmp_path / "broken", iterations, faults)
    done = json.loads((broken.folder / "faults.json").read_text())
    assert sum(done.values()) == faults, "the run ended before all connections were broken"
    assert broken.theta() == plain.theta()
    assert broken.events(WorkerLost) == []
    assert broken.events(NodeLost) == []
    assert len(broken.events(WorkerJoined)) == len(plain.events(WorkerJoined))
