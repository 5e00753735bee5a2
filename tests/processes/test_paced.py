"""A paced run: real processes, sockets and a real SIGKILL, with waiting in place of computing."""

from pathlib import Path

import msgspec
import pytest
from live_run import LiveRun
from market_stories import bubbles

from spotlight.control.market.occupancy import Tenure
from spotlight.control.profiles import Operation, Point, Profile, Provenance, Series, Times
from spotlight.control.profiles.timings import ONE_FIGURE
from spotlight.core.events import Accepted, Checkpointed, IterationDone, Restored, StepCommitted, WorkerLost
from spotlight.core.work import Activity, SlotClass

pytestmark = pytest.mark.timeout(180)

PROFILE, SPEED = "h200-qwen-image-512", 40
RECIPE = f"""
extends: words-large-nft
iterations: 2
rollout: {{prompts: 2, group_size: 4, steps: 4}}
explore: {{plan: fixed, seeds: 4, steps: 2}}
eval: {{every: 2, prompts: 2, steps: 2}}
cluster: {{reserved: 2, gang: 2, spot: 1, rows: 4, heartbeat_s: 0.2, pace_speed: {SPEED}}}
reward: {{processes: 1}}
output: {{name: run, checkpoint_every: 1, journal: {{sync: never}}}}
"""


@pytest.fixture
def run(tmp_path):
    run = LiveRun(tmp_path, RECIPE)
    yield run
    run.close()


def test_paced_run_on_three_slots_with_a_worker_killed_trains_all_iterations_and_is_clean(run: LiveRun) -> None:
    run.start("--pace", PROFILE)
    run.wait_for_event(Accepted)
    killed = run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
    assert run.finish() == 0, run.log()
    run.check()
    assert killed.worker in {event.worker for event in run.events(WorkerLost)}
    assert [event.iteration for event in run.events(IterationDone)] == [0, 1]
    # Two ranks share 4 images of 2 timesteps per update; never faster than the profile at this speed.
    profile = Profile.load(PROFILE)
    update_s = profile.seconds(Operation.TRAIN_TIMESTEP, 4) + profile.seconds(Operation.OPTIMIZER_STEP, degree=2)
    updates = len(run.events(StepCommitted))
    assert updates == 4
    assert sum(event.train_s for event in run.events(IterationDone)) >= updates * update_s / SPEED
    spent = bubbles(run.records()).seconds
    assert {"train", "publish", "load", "rollout", "start"} <= set(spent[Tenure.RESERVED])
    assert not {"train", "publish", "assist", "switch"} & set(spent[Tenure.SPOT])
    # Two ranks train, each for the seconds of the profile.
    assert spent[Tenure.RESERVED][Activity.TRAIN] >= 2 * updates * update_s / SPEED


SAVED_S, COPIED_S = 8.0, 0.1


def slow_disk(path: Path) -> Path:
    """The profile with a checkpoint that is still being written when the trainer is killed."""
    profile = Profile.load(PROFILE)
    saved, copied = (
        Times(
            interpolation=ONE_FIGURE,
            series=(
                Series(
                    provenance=Provenance.DERIVED,
                    how="Chosen by the test.",
                    points=(Point(1, 1, s * SPEED, s * SPEED),),
                ),
            ),
        )
        for s in (SAVED_S, COPIED_S)
    )
    times = {**profile.operations, Operation.CHECKPOINT: saved, Operation.SNAPSHOT: copied}
    path.write_bytes(msgspec.structs.replace(profile, operations=times).to_json())
    return path


@pytest.mark.slow
def test_trainer_killed_while_its_checkpoint_is_written_restores_the_one_before(tmp_path) -> None:
    recipe = RECIPE.replace("reserved: 2, gang: 2", "reserved: 1, gang: 1").replace("iterations: 2", "iterations: 3")
    run = LiveRun(tmp_path, recipe.replace("checkpoint_every: 1", "checkpoint_every: 2"))
    try:
        run.start("--pace", str(slow_disk(tmp_path / "slow-disk.json")))
        # The first step of the third iteration: the checkpoint of the second is under way.
        run.wait_for_event(StepCommitted, lambda event: event.step == 4)
        assert not run.events(Checkpointed), "the trainer waited for its checkpoint"
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.RESERVED)
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    run.check()
    assert [event.step for event in run.events(Restored)] == [0]
    assert [event.step for event in run.events(Checkpointed)] == [6]
    assert sorted(path.name for path in (run.run / "checkpoints").iterdir())[-1] == "step_000006"


@pytest.mark.slow
def test_paced_run_in_parts_records_the_help_of_its_trainers(tmp_path) -> None:
    run = LiveRun(tmp_path, f"{RECIPE}pipeline: {{gap: true}}\n")
    try:
        run.start("--pace", PROFILE)
        assert run.finish() == 0, run.log()
        run.check()
    finally:
        run.close()
    found = bubbles(run.records())
    assert found.seconds[Tenure.RESERVED][Activity.ASSIST] > 0
    assert Activity.ASSIST not in found.seconds[Tenure.SPOT]
    assert [one.iteration for one in found.iterations if one.end is not None] == [0, 1]
