"""Real runs: real processes, real kills, and the weights that come out of them."""

import pytest
from live_run import LiveRun

from spotlight.core.events import Accepted, RunResumed, StepCommitted, WorkerLost
from spotlight.core.work import SlotClass

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> LiveRun:
    run = LiveRun(tmp_path_factory.mktemp("undisturbed"))
    run.start()
    assert run.finish() == 0, run.log()
    run.check()
    return run


def test_run_with_workers_trainer_and_controller_killed_ends_with_the_weights_of_an_undisturbed_one(
    undisturbed: LiveRun, tmp_path
) -> None:
    run = LiveRun(tmp_path)
    try:
        run.start()
        run.wait_for_event(Accepted)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        run.wait_for_event(StepCommitted)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.RESERVED)
        run.wait_for_event(StepCommitted, lambda event: event.step >= 2)
        run.kill_controller()
        run.wait_for(lambda: not run.living())
        run.resume()
        run.wait_for_event(RunResumed)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    run.check()
    assert len(run.events(WorkerLost)) >= 3
    assert run.theta() == undisturbed.theta()
