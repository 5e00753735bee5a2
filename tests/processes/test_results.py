"""Results of a run: evaluated by every name, used as the base of another run, and resumed without running code."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import spotlight
from live_run import LiveRun
from made_run import made_run
from planted import planted_everywhere

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.sources import resolve
from spotlight.core.events import Evaluated, RunStarted
from spotlight.core.run_files import BASE

pytestmark = pytest.mark.timeout(600)

RECIPE = """
extends: words-nft
deterministic: true
iterations: 1
rollout: {prompts: 2, group_size: 2, steps: 2}
train: {micro_batch: 4, lr: 1.0e-3}
explore: {enabled: off}
eval: {every: 1, prompts: 4, steps: 2}
cluster: {reserved: 1, spot: 0, rows: 4}
reward: {name: jpeg, processes: 1}
output: {name: run, checkpoint_every: 1, journal: {sync: never}}
"""
SETTINGS_OF_THE_RUN = (
    "--count", "4", "--steps", "2", "--batch", "4", "--reward", "jpeg", "--no-judge", "--processes", "1", "--json"
)  # fmt: skip


def evaluated(name: str | Path) -> dict:
    outcome = spotlight("evaluate", name, *SETTINGS_OF_THE_RUN)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def rewards(run: LiveRun) -> list[float]:
    """Rewards of the run's own held-out evaluations."""
    return [event.scores["reward"][0] for event in run.events(Evaluated)]


def finished(run: LiveRun) -> LiveRun:
    try:
        assert run.finish() == 0, run.log()
    finally:
        run.close()
    run.check()
    return run


@pytest.mark.slow
def test_result_is_evaluated_by_every_name_and_the_run_based_on_it_does_not_need_it(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = made_run(tmp_path / "runs" / "run")
    by_name = [evaluated(name) for name in (first.average, "run", first.checkpoint)]
    assert len({shown["digest"] for shown in by_name}) == 1
    assert [shown["figures"] for shown in by_name] == [by_name[0]["figures"]] * 3
    assert by_name[0]["digest"] != facts_of("words").digest

    # Adapters on top of the result; the first run is then deleted.
    second = LiveRun(tmp_path, RECIPE, name="second")
    second.start("--model.name", "run", "--train.lora.rank", "2")
    finished(second)
    (began,) = second.events(RunStarted)
    assert began.base_digest == by_name[0]["digest"] == facts_of(str(second.run / BASE)).digest
    begin = by_name[0]["figures"]["reward"]["value"]
    assert rewards(second)[0] == begin, "the second run begins with the result of the first"
    shutil.rmtree(first.folder.path)
    by_name = [evaluated(name) for name in ("second", second.run / "checkpoints" / "step_000002")]
    assert by_name[0]["figures"] == by_name[1]["figures"]
    assert by_name[0]["digest"] == by_name[1]["digest"] != began.base_digest
    # Merged adapters round differently from adapters beside the weights, so a few pixels may differ.
    assert by_name[0]["figures"]["reward"]["value"] == pytest.approx(rewards(second)[-1], rel=1e-2)


@pytest.mark.slow
def test_resumed_run_opens_none_of_the_pickles_in_its_folder_and_makes_their_contents_again(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = LiveRun(tmp_path, RECIPE, name="run")
    run.start("--train.lora.rank", "2")
    finished(run)
    marker = run.folder / "marker"
    for planted in planted_everywhere(run.run, marker):
        assert planted.is_file()
    run.resume("--set", "iterations=2")
    finished(run)
    assert len(run.events(Evaluated)) == 3
    assert not marker.exists()
    assert resolve("run").path.name == "average-2.safetensors"
