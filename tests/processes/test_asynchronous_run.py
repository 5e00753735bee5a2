"""A real asynchronous run: real processes, real kills, and the resulting weights."""

import pytest
from live_run import RECIPE, LiveRun

from spotlight.core.events import Issued, IterationDone, RunResumed, StepCommitted
from spotlight.core.work import SlotClass, Work

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

AHEAD = RECIPE.format(iterations=3) + "pipeline: {asynchrony: true, gap: true}\n"


def stale(run: LiveRun) -> list[str]:
    return [
        request.id
        for event in run.events(Issued)
        for request in event.requests
        if request.work is Work.ROLLOUT and request.sample.version < request.iteration
    ]


def test_asynchronous_run_killed_with_stale_groups_in_flight_ends_with_the_undisturbed_weights(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    undisturbed = LiveRun(tmp_path_factory.mktemp("undisturbed"), AHEAD)
    run = LiveRun(tmp_path_factory.mktemp("killed"), AHEAD)
    try:
        undisturbed.start()
        assert undisturbed.finish() == 0, undisturbed.log()
        run.start()
        run.wait_for_event(Issued, lambda event: any(r.sample.version < r.iteration for r in event.requests))
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        run.wait_for_event(IterationDone)
        run.kill_controller()
        run.wait_for(lambda: not run.living())
        run.resume()
        run.wait_for_event(RunResumed)
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.RESERVED)
        assert run.finish() == 0, run.log()
    finally:
        run.close()
        undisturbed.close()
    for each in (undisturbed, run):
        each.check()
        # One group of four in the second iteration, and one in the third.
        assert len(stale(each)) == 8
        shares = {event.step: event.figures["stale_share"] for event in each.events(StepCommitted)}
        assert sum(shares.values()) > 0
        assert all("drift_stale" in event.figures for event in each.events(StepCommitted) if shares[event.step])
    assert run.theta() == undisturbed.theta()
