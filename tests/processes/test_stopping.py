"""Ends of a live run and the output of `status`: stopped by a signal, at its time limit, failed (see test_run.py)."""

import os
import signal
import textwrap
from pathlib import Path

import pytest
from live_run import RECIPE, LiveRun

from spotlight.core.events import Issued, RunStopped
from spotlight.presence import read_beat

pytestmark = pytest.mark.timeout(600)
HANGING = """
import time
from pathlib import Path
import numpy as np
from spotlight.compute.rewards.protocol import Scores

class Hanging:
    name, version = "hanging", "1"
    def score(self, images, prompts):
        while Path(__file__).with_name("hang").exists():
            time.sleep(0.1)
        return Scores(total=np.zeros(len(images)))
"""


def test_signal_stops_the_run_within_its_time_limit_though_the_iteration_never_ends(tmp_path: Path) -> None:
    (tmp_path / "never.py").write_text(textwrap.dedent(HANGING))
    recipe = RECIPE.format(iterations=1).replace("heartbeat_s: 0.2", "heartbeat_s: 0.2, start_s: 30.0")
    recipe = recipe.replace("reward: {processes: 1}", "reward: {processes: 1, name: 'never:Hanging'}")
    run = LiveRun(tmp_path, recipe, is_lent=True)
    try:
        run.start("--cluster.spot", "0")
        run.wait_for(lambda: read_beat(run.run))
        (tmp_path / "hang").touch()
        run.wait_for_event(Issued)
        run.interrupt()
        assert run.finish() == 4, run.log()
    finally:
        run.close()
    (stopped,) = run.events(RunStopped)
    assert not stopped.failed
    assert "had not ended 30 s after it was asked to stop" in stopped.reason
    assert run.status()["state"] == "stopped"
    assert run.log().count("`spotlight resume run` continues it.") == 1


@pytest.mark.slow
def test_run_that_is_stopped_while_it_starts_stops_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    run = LiveRun(tmp_path, iterations=1)
    try:
        run.start("--cluster.spot", "0")
        beat = run.wait_for(lambda: read_beat(run.run))
        os.kill(beat.pid, signal.SIGTERM)
        run.wait_for(lambda: "once more stops at once" in run.log())
        os.kill(beat.pid, signal.SIGTERM)
        assert run.finish() == 4, run.log()
    finally:
        run.close()
    status = run.status()
    assert status["state"] == "stopped"
    assert "stopped at once" in status["reason"]


@pytest.mark.slow
def test_run_whose_nodes_cannot_store_weights_fails_with_the_exit_code_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    run = LiveRun(tmp_path, iterations=1)
    run.start("--cluster.store", str(tmp_path / "a file"))
    assert run.finish() == 3, run.log()
    status = run.status()
    assert status["state"] == "failed"
    assert "choose another folder with cluster.store" in status["reason"]
