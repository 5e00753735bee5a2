"""Machines that join a real run: a resumed one, and an orderly end. See test_any_pool.py for stories of every pool."""

import pytest
from joined_machine import JoinedMachine
from live_run import RECIPE, LiveRun

from spotlight.core.events import Leased, NodeLost, WorkerJoined

JOINED = RECIPE.replace("spot: 2", "spot: 1, grace_s: 5, pool: join, listen: '127.0.0.1:0'")


@pytest.mark.slow
def test_machine_joins_a_resumed_run_with_the_token_file_that_it_has(tmp_path):
    (tmp_path / "run").mkdir()
    # A fixed port, as users have one: the machine does not learn another.
    recipe = JOINED.replace("127.0.0.1:0", "127.0.0.1:27941")
    run = LiveRun(tmp_path / "run", recipe.format(iterations=5))
    machine = JoinedMachine(run)
    try:
        run.start()
        machine.join()
        run.wait_for_event(Leased, lambda event: event.worker.startswith("box.1/"))
        before = machine.token_file
        run.kill_controller()
        assert machine.finish() == 4, machine.log()
        run.resume()
        machine.join()
        assert machine.token_file == before
        run.wait_for_event(WorkerJoined, lambda event: event.node == "box.2")
        assert (run.finish(), machine.finish()) == (0, 0), run.log() + machine.log()
        assert "leaves: the run is done." in machine.log()
    finally:
        machine.close()
        run.close()
    run.check()


@pytest.mark.slow
def test_machine_that_is_asked_to_stop_hands_back_its_samples_and_leaves(tmp_path):
    (tmp_path / "run").mkdir()
    run = LiveRun(tmp_path / "run", JOINED.format(iterations=5))
    machine = JoinedMachine(run)
    try:
        run.start()
        machine.join()
        run.wait_for_event(Leased, lambda event: event.worker.startswith("box.1/"))
        machine.interrupt()
        assert machine.finish() == 0, machine.log()
        lost = run.wait_for_event(NodeLost, lambda event: event.node == "box.1")
        assert "for 5 s" not in lost.cause, "it was waited for, though it had reported its end"
        assert run.finish() == 0, run.log()
    finally:
        machine.close()
        run.close()
    run.check()
