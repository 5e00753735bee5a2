"""Runs of real model families, tiny and random: one reserved and one spot process, previews, a kill in mid-flight."""

from pathlib import Path

import pytest
from exported_picture import check_exported_picture
from live_run import LiveRun

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.core.events import Accepted, Encoded, Leased, Previewed, WorkerLost
from spotlight.core.work import SlotClass, Work

pytestmark = pytest.mark.timeout(600)

RECIPE = """
deterministic: true
iterations: 2
model: {{name: "random-tiny:{family}"}}
data: {{prompts: mine.txt, held_out: held.txt, size: 64x64}}
reward: {{name: jpeg, processes: 1}}
algorithm: {{kind: nft}}
rollout: {{prompts: 2, group_size: 4, steps: 6, guidance: 3.0}}
train: {{micro_batch: 4, updates_per_iteration: 1, lora: {{rank: 4, alpha: 8}}}}
explore: {{plan: fixed, seeds: 6, steps: 3, audit_share: 0.5}}
eval: {{every: 2, prompts: 2, steps: 4}}
cluster: {{reserved: 1, spot: 1, rows: 4, commit_every: 1, heartbeat_s: 0.2}}
output: {{checkpoint_every: 2, journal: {{sync: never}}}}
"""
PROMPTS = "a red boat on a lake\ntwo foxes at play in the first snow of a long winter\nrain\n"


def new_run(folder: Path, family: str) -> LiveRun:
    (folder / "mine.txt").write_text(PROMPTS)
    (folder / "held.txt").write_text('a sign that says "river"\n')
    return LiveRun(folder, RECIPE.format(family=family))


def finish(run: LiveRun) -> None:
    try:
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    run.check()
    assert len(run.events(Encoded)) == 1, "every prompt is encoded before the first iteration"


def finish_with_a_kill(run: LiveRun) -> None:
    """Start it, kill a spot worker in mid-flight, and finish it."""
    try:
        run.start()
        run.wait_for(lambda: held_by_spot(run))
        run.kill_worker(lambda worker: worker.slot_class is SlotClass.SPOT)
        run.wait_for_event(WorkerLost)
    except BaseException:
        run.close()
        raise
    finish(run)
    assert run.events(Previewed)


@pytest.mark.slow
def test_run_of_a_real_family_trains_and_exports_its_lora(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sd3")
    run.start("--iterations", "1", "--cluster.spot", "0", "--explore.enabled", "off", "--eval.every", "1000")
    finish(run)
    check_exported_picture(run.run, "sd3")


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_run_whose_spot_worker_is_killed_in_mid_flight_changes_no_bit(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    undisturbed, run = (new_run(tmp_path_factory.mktemp(name), family) for name in ("undisturbed", "killed"))
    undisturbed.start()
    finish(undisturbed)
    finish_with_a_kill(run)
    assert run.theta() == undisturbed.theta()
    check_exported_picture(run.run, family)


def held_by_spot(run: LiveRun) -> bool:
    """Whether a spot worker holds a rollout that is not finished."""
    accepted = {event.request for event in run.events(Accepted)}
    spot = {worker.worker for worker in run.living() if worker.slot_class is SlotClass.SPOT}
    leased = [event for event in run.events(Leased) if event.worker in spot]
    return any(event.request not in accepted and event.request.startswith(Work.ROLLOUT.value) for event in leased)
