"""Real runs on a Ray cluster of several nodes on this machine."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_run import RECIPE, LiveRun

from spotlight.core.events import Leased, NodeJoined, NodeLost, NoticeGiven, StepCommitted, WorkerJoined

try:
    import ray  # noqa: F401
except ModuleNotFoundError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("Ray is not installed", allow_module_level=True)
from ray_cluster import TestCluster

ITERATIONS = 200
"""More than any test needs: runs are ended when all has happened."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestCluster]:
    found = TestCluster()
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    yield found
    found.close()


def test_ray_nodes_join_die_drain_and_return_and_the_weights_stay_the_same(tmp_path: Path, cluster: TestCluster):
    for name in ("a", "b"):
        cluster.add(name)
    run = started(tmp_path / "ray", cluster)
    try:
        for name in ("a", "b"):
            run.wait_for_event(WorkerJoined, lambda event, name=name: event.node == f"ray-{name}.1")
        held = len(run.events(Leased))
        run.wait_for(lambda: any(each.worker.startswith("ray-a.1/") for each in run.events(Leased)[held:]))
        cluster.kill("a")
        lost = run.wait_for_event(NodeLost, lambda event: event.node == "ray-a.1")
        assert lost.cause.startswith("node lost: ")
        cluster.add("a")
        run.wait_for_event(NodeJoined, lambda event: event.node == "ray-a.2")

        cluster.drain("b", 8.0)
        seen = run.wait_for_event(NoticeGiven, lambda event: event.worker.startswith("ray-b.1/"))
        assert 0 < seen.seconds <= 8.0
        cluster.kill("b")
        drained = run.wait_for_event(NodeLost, lambda event: event.node == "ray-b.1")
        assert drained.cause.startswith("preempted: ")
        run.wait_for_event(WorkerJoined, lambda event: event.node == "ray-a.2")
        run.interrupt()
        assert run.finish() == 4
        run.check()
        assert cluster.actors() == []
        assert "a" in cluster.nodes(), "the cluster must stay"
        digests = [event.digest for event in run.events(StepCommitted)]
    finally:
        run.close()
    assert digests == undisturbed(tmp_path / "plain", len(digests))


def started(folder: Path, cluster: TestCluster) -> LiveRun:
    run = made(folder)
    run.start("--cluster.pool", "ray", "--cluster.address", cluster.address)
    return run


def made(folder: Path) -> LiveRun:
    folder.mkdir()
    return LiveRun(folder, re.sub("eval: .*\n", "", RECIPE.format(iterations=ITERATIONS)))


def undisturbed(folder: Path, steps: int) -> list[str]:
    """Digests of the first steps of a run without Ray."""
    run = made(folder)
    run.start("--cluster.spot", "0")
    try:
        run.wait_for(lambda: len(run.events(StepCommitted)) >= steps)
        return [event.digest for event in run.events(StepCommitted)][:steps]
    finally:
        run.close()
