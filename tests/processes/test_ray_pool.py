"""A run on a Ray cluster that is lost as a whole, and one whose controller is lost; see test_any_pool.py for nodes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_run import RECIPE, LiveRun

from spotlight.core.events import NodeLost, ProblemNoted, StepCommitted, WorkerJoined

try:
    import ray  # noqa: F401
except ModuleNotFoundError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("Ray is not installed", allow_module_level=True)
from benchmarks.lib.ray_cluster import LocalRayCluster

ITERATIONS = 200
"""More than any test needs: runs are ended when all has happened."""


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch, has_token: bool) -> Iterator[LocalRayCluster]:
    found = LocalRayCluster(has_token)
    try:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
    finally:
        found.close()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRayCluster]:
    with running(monkeypatch, has_token=False) as found:
        yield found


@pytest.mark.slow
def test_loss_of_the_whole_cluster_does_not_stop_training(
    tmp_path: Path, cluster: LocalRayCluster, monkeypatch: pytest.MonkeyPatch
):
    # Ray gives a head up after 60 s.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "2")
    cluster.add("a")
    run = started(tmp_path / "ray", cluster)
    try:
        run.wait_for_event(WorkerJoined, lambda event: event.node == "ray-a.1")
        cluster.kill("a")
        cluster.kill("head")
        run.wait_for_event(NodeLost, lambda event: event.node == "ray-a.1")
        run.wait_for_event(ProblemNoted, lambda event: "connection to the Ray cluster is lost" in event.problem)
        steps = len(run.events(StepCommitted))
        run.wait_for(lambda: len(run.events(StepCommitted)) > steps + 1)
        run.interrupt()
        assert run.finish() == 4
        run.check()
    finally:
        run.close()


@pytest.mark.slow
def test_killed_controllers_actors_end_and_its_resumed_run_gets_the_nodes_again_with_token_authentication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with running(monkeypatch, has_token=True) as cluster:
        cluster.add("a")
        run = started(tmp_path / "ray", cluster)
        try:
            run.wait_for_event(WorkerJoined, lambda event: event.node == "ray-a.1")
            run.kill_controller()
            run.wait_for(lambda: not cluster.actors())
            assert "a" in cluster.nodes()
            run.resume()
            run.wait_for_event(WorkerJoined, lambda event: event.node == "ray-a.2")
            run.interrupt()
            assert run.finish() == 4
            run.check()
        finally:
            run.close()
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        refused = made(tmp_path / "stranger")
        refused.start("--cluster.pool", "ray", "--cluster.address", cluster.address)
        assert refused.finish() == 3
        assert "RAY_AUTH_MODE" in refused.log()
        assert not refused.run.exists()


def started(folder: Path, cluster: LocalRayCluster) -> LiveRun:
    cluster.settle()
    run = made(folder)
    run.start("--cluster.pool", "ray", "--cluster.address", cluster.address)
    return run


def made(folder: Path) -> LiveRun:
    folder.mkdir()
    return LiveRun(folder, RECIPE.format(iterations=ITERATIONS).replace("every: 2", "every: 1000"))
