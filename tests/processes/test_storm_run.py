"""A demo-sized run with the storm trace of the market, kills of the trainer and kills of the controller."""

import pytest
from live_run import LiveRun

from spotlight.control.ledger.audit import audit
from spotlight.control.ledger.findings import Bounds
from spotlight.core.events import Compared, Published, RunResumed, StepCommitted, WorkerLost
from spotlight.core.work import SlotClass

COMMIT_EVERY = 2
RECIPE = f"""
extends: demo
iterations: 24
cluster: {{commit_every: {COMMIT_EVERY}}}
market: {{trace: storm}}
output: {{name: run, checkpoint_every: 3}}
"""


def reserved(worker) -> bool:
    return worker.slot_class is SlotClass.RESERVED


def spot_losses(run: LiveRun) -> list[WorkerLost]:
    return [event for event in run.events(WorkerLost) if event.worker.startswith("spot")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_losses_two_dead_controllers_and_four_dead_trainers_lose_no_sample(tmp_path) -> None:
    run = LiveRun(tmp_path, RECIPE)
    try:
        run.start()
        # Gradients are being made and no step is taken yet.
        run.wait_for_event(Compared)
        run.kill_worker(reserved)
        # A step is committed and its weights are not published.
        run.wait_for_event(StepCommitted, lambda event: event.step % 2 == 1)
        run.kill_worker(reserved)
        # A version is published and the next iteration has begun.
        run.wait_for_event(Published, lambda event: event.weights.version == 2)
        run.kill_worker(reserved)
        # A checkpoint is half written.
        run.wait_for(lambda: list((run.run / "checkpoints").glob("*.part")))
        run.kill_worker(reserved)

        run.wait_for(lambda: len(spot_losses(run)) >= 20)
        run.kill_controller()
        run.resume()
        run.wait_for(lambda: len(spot_losses(run)) >= 40)
        run.kill_controller()
        run.resume()
        assert run.finish(patience_s=1200) == 0, run.log()
    finally:
        run.close()

    report = audit(run.records(), Bounds(max_lag=0, commit_every=COMMIT_EVERY, bit_exact=False))
    assert report.clean, "\n".join(report.sentences())
    losses = spot_losses(run)
    unnoticed = [loss for loss in losses if not loss.noticed]
    assert len(losses) >= 50
    assert len(unnoticed) >= 25
    assert len(run.events(RunResumed)) == 2
