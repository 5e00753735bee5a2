"""Real runs with two training ranks: ranks are killed in every phase of a step, and the result does not change."""

from itertools import cycle, islice
from pathlib import Path

import pytest
from doomed_ranks import PHASES, write_fates
from live_run import LiveRun

from spotlight.control.ledger.audit import audit
from spotlight.control.ledger.findings import Bounds
from spotlight.core.events import ProblemNoted, Restored, StepCommitted, WorkerLost

RECIPE = """
extends: words-nft
deterministic: {deterministic}
iterations: {iterations}
rollout: {{prompts: 2, group_size: 4, steps: 4}}
train: {{micro_batch: 4}}
explore: {{enabled: 'off'}}
eval: {{every: 1000, prompts: 2, steps: 2}}
cluster: {{reserved: 1, slots: 2, gang: 2, gang_elastic: {elastic}, spot: 1, rows: 4, commit_every: 1}}
reward: {{processes: 1}}
output: {{name: run, checkpoint_every: 2, journal: {{sync: never}}}}
"""


def recipe(iterations: int, deterministic: bool = True, elastic: bool = False) -> str:
    return RECIPE.format(iterations=iterations, deterministic=str(deterministic).lower(), elastic=str(elastic).lower())


def started(folder: Path, text: str, fates: list[tuple[str, int]]) -> LiveRun:
    folder.mkdir()
    write_fates(folder / "fates", fates)
    run = LiveRun(folder, text)
    run.start_doomed(folder / "fates")
    return run


def fates_left(run: LiveRun) -> list[Path]:
    return sorted((run.folder / "fates").iterdir())


def finished(folder: Path, text: str, fates: list[tuple[str, int]]) -> LiveRun:
    run = started(folder, text, fates)
    try:
        assert run.finish(patience_s=1500) == 0, run.log()
    finally:
        run.close()
    assert not fates_left(run), "every fate was met"
    return run


def assert_clean(run: LiveRun, is_exact: bool) -> None:
    report = audit(run.records(), Bounds(max_lag=0, commit_every=1, bit_exact=is_exact))
    assert report.clean, "\n".join(report.sentences())


def kills(run: LiveRun) -> int:
    return sum("SIGKILL" in event.cause for event in run.events(WorkerLost) if event.worker.startswith("reserved"))


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_ranks_killed_in_every_phase_end_in_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    fates = list(zip(PHASES, cycle((0, 1)), strict=False))
    undisturbed = finished(tmp_path / "calm", recipe(4), [])
    killed = finished(tmp_path / "killed", recipe(4), fates)
    assert kills(killed) == len(PHASES)
    assert_clean(killed, is_exact=True)
    assert killed.theta() == undisturbed.theta()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_elastic_gang_goes_on_from_the_last_committed_step_without_its_lost_rank(tmp_path: Path) -> None:
    """Rank 1, and an exchange, exist in a whole gang alone: each fate waits until the gang has grown again. The run has
    more iterations than that takes and is stopped after the last one."""
    run = started(tmp_path / "run", recipe(1000, False, True), [("backward", 1), ("step", 1), ("exchange", 0)])
    try:
        run.wait_for(lambda: not fates_left(run) and kills(run) == 3)
        steps = len(run.events(StepCommitted))
        run.wait_for(lambda: len(run.events(StepCommitted)) > steps)
        run.interrupt()
        assert run.finish() == 4, run.log()
    finally:
        run.close()
    assert_clean(run, is_exact=False)
    assert not run.events(Restored), "no committed step was taken back"
    committed = run.events(StepCommitted)
    assert [event.step for event in committed] == list(range(len(committed)))
    shrunk = [event for event in run.events(ProblemNoted) if "training goes on with 1 ranks" in event.problem]
    assert shrunk, "the gang went on without its lost rank"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_ten_kills_in_each_phase_end_in_the_bits_of_an_undisturbed_run(tmp_path: Path) -> None:
    phases = list(islice(cycle(PHASES), 10 * len(PHASES)))
    fates = [(phase, (number + number // len(PHASES)) % 2) for number, phase in enumerate(phases)]
    undisturbed = finished(tmp_path / "calm", recipe(24), [])
    killed = finished(tmp_path / "killed", recipe(24), fates)
    assert kills(killed) == len(fates)
    assert_clean(killed, is_exact=True)
    assert killed.theta() == undisturbed.theta()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_of_two_ranks_resumes_with_one_and_with_three(tmp_path: Path) -> None:
    run = LiveRun(tmp_path, recipe(2, deterministic=False))
    try:
        run.start()
        assert run.finish() == 0, run.log()
        for ranks, iterations in ((1, 3), (3, 4)):
            slots = [f"cluster.{name}={ranks}" for name in ("slots", "gang")]
            settings = [part for setting in (*slots, f"iterations={iterations}") for part in ("--set", setting)]
            run.resume(*settings)
            assert run.finish() == 0, run.log()
    finally:
        run.close()
    assert_clean(run, is_exact=False)
    assert len(run.events(StepCommitted)) == 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sharded_ranks_that_are_killed_restart_from_the_checkpoint(tmp_path: Path) -> None:
    text = recipe(4, deterministic=False) + "pipeline: {tag: false}\n"
    text = text.replace("train: {micro_batch: 4}", "train: {micro_batch: 4, parallel: sharded}")
    run = finished(tmp_path / "run", text, [("backward", 1), ("forward", 0)])
    assert kills(run) == 2
    assert_clean(run, is_exact=False)
