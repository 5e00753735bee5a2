"""The Python API on recorded and simulated runs; tests/processes/test_api_run.py has a live one."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import spotlight as command
from story_journal import story

import spotlight
from spotlight.compute.data.prompts import RunPrompts
from spotlight.config import load_config
from spotlight.core.events import Accepted, Record, Reopened
from spotlight.core.journal import Journal, read
from spotlight.core.types import Prompt
from spotlight.core.work import Work
from spotlight.folder import OutputConfig, RunFolder
from spotlight.surface.api import override_of
from spotlight.surface.sample_counts import work_of

TINY = {
    "iterations": 2, "rollout.prompts": 2, "rollout.group_size": 2, "rollout.steps": 4, "eval.every": 1,
    "eval.prompts": 2, "explore.enabled": "off",
}  # fmt: skip
ROOT = Path(__file__).parents[2]


def write_run(records: list[Record], name: str = "words-nft") -> RunFolder:
    folder = RunFolder.create(OutputConfig(), name)
    folder.write_config(load_config("words-nft").model_dump(mode="json"))
    now = 0.0
    with Journal.create(folder.journal, lambda: now) as journal:
        for record in records:
            now = record.at
            journal.append(record.event)
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> spotlight.RunHandle:
    monkeypatch.chdir(tmp_path)
    return spotlight.open(write_run(story()).path)


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> spotlight.RunHandle:
    monkeypatch.chdir(tmp_path)
    return spotlight.simulate(spotlight.load_recipe("words-nft", TINY), "cpu-words")


def test_import_loads_no_function_before_its_first_use():
    code = (
        "import sys, spotlight\n"
        "heavy = ('numpy', 'msgspec', 'pydantic', 'rich', 'spotlight.surface')\n"
        "print([name for name in heavy if name in sys.modules])\n"
        "print(spotlight.SpotlightError.__name__, 'pydantic' in sys.modules, 'train' in dir(spotlight))\n"
        "spotlight.trane"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines() == ["[]", "SpotlightError False True"]
    assert "AttributeError: module 'spotlight' has no attribute 'trane'" in found.stderr


def test_settings_arrive_as_on_the_command_line():
    mapped = spotlight.load_recipe("words-nft", {"cluster.spot": 3, "train.betas": [0.5, 0.9]}, iterations=4)
    listed = spotlight.load_recipe("words-nft", ["cluster.spot=3", "train.betas=[0.5,0.9]", "iterations=4"])
    nested = spotlight.load_recipe("words-nft", iterations=4, cluster={"spot": 3}, train={"betas": (0.5, 0.9)})
    assert mapped.config == listed.config == nested.config == load_config("words-nft", listed.overrides)
    assert (mapped.config.iterations, mapped.config.cluster.spot) == (4, 3)


@pytest.mark.parametrize("text", ["plain", "1e-3", "null", "ä😀", "a: b # c", "\x07\x7f\x85\u2028\u202e", "\\U", '"'])
def test_any_text_survives_as_a_setting(text):
    assert spotlight.load_recipe("words-nft", [override_of("output.folder", text)]).config.output.folder == text


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        ({"train.lrr": 1}, ["--set", "train.lrr=1"]),
        ({"iterations": 0}, ["--set", "iterations=0"]),
        ({"model.name": "wrods"}, ["--set", 'model.name="wrods"']),
    ],
)
def test_a_refused_recipe_raises_the_sentence_of_the_command_line(tmp_path, monkeypatch, settings, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(spotlight.SpotlightError) as refused:
        spotlight.load_recipe("words-nft", settings)
    shown = command("train", "words-nft", *arguments)
    assert (shown.code, shown.err.strip()) == (refused.value.exit_code, f"spotlight: {refused.value}")


def test_a_run_that_its_checks_refuse_raises_their_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(spotlight.InputError, match="the price table 'list-2026-08' has no row 'aws', so its nodes"):
        spotlight.train(spotlight.load_recipe("words-nft", {"market.spot_price": "aws"}))
    assert list(tmp_path.iterdir()) == []


def test_unknown_runs_scores_and_kinds_of_samples_are_refused(run):
    with pytest.raises(spotlight.InputError, match="did you mean 'words-nft-1'"):
        spotlight.open("words-nft-2")
    with pytest.raises(spotlight.InputError, match="no held-out score 'exat': did you mean 'exact'"):
        run.curve("exat")
    with pytest.raises(spotlight.InputError, match="no samples of 'rolout': did you mean 'rollout'"):
        run.samples("rolout")


def test_status_curve_and_iterations_are_those_of_the_command_line(run):
    shown = json.loads(command("status", run.path, "--json").out)
    assert run.status().cost.dollars == shown["cost"]["dollars"]
    assert [row["reward"] for row in run.iterations()] == [one["reward"] for one in shown["iterations"]]
    curve = run.curve()
    assert {row["score"] for row in curve} == {shown["headline"]}
    evaluated = [(one["iteration"], one["scores"][shown["headline"]]) for one in shown["evaluations"]]
    assert [
        (row["iteration"], {"value": row["value"], "low": row["low"], "high": row["high"]}) for row in curve
    ] == evaluated
    assert [row["dollars"] for row in curve] == sorted(row["dollars"] for row in curve)
    assert all(set(row) == set(spotlight.CurveRow.__annotations__) for row in curve)


def test_a_curve_grows_with_the_journal_of_a_live_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = story()
    folder = write_run(records[: len(records) // 2])
    run, whole = spotlight.open(folder.path), spotlight.open(write_run(records).path)
    first = run.curve()
    now = records[len(records) // 2 - 1].at
    with Journal.open(folder.journal, lambda: now) as journal:
        for record in records[len(records) // 2 :]:
            now = record.at
            journal.append(record.event)
    assert first == whole.curve()[: len(first)] != whole.curve()
    assert run.curve() == whole.curve()


def test_a_run_without_an_evaluation_has_an_empty_curve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spotlight.open(write_run(story()[:1]).path).curve() == []


def test_samples_have_prompt_rewards_and_picture_and_a_repeated_one_counts_once(run):
    folder = RunFolder.find(run.name)
    accepted = [record.event for record in read(folder.journal) if isinstance(record.event, Accepted)]
    held_out = next(event for event in accepted if work_of(event.request) is Work.EVALUATION)
    texts = [Prompt(text="<script>\x1b[2J"), Prompt(text="plain")]
    folder.write_prompts(RunPrompts(training=tuple(texts), held_out=tuple(texts)))
    (folder.path / held_out.payload).parent.mkdir(parents=True)
    (folder.path / held_out.payload).write_bytes(b"\x89PNG\r\n\x1a\n")
    found = list(run.samples())
    assert len(found) == len(accepted)
    assert [sample.reward for sample in found] == [event.reward for event in accepted]
    assert [sample.picture for sample in found if sample.picture] == [folder.path / held_out.payload]
    assert {sample.work for sample in run.samples("rollout")} == {Work.ROLLOUT}
    with Journal.open(folder.journal, lambda: 0.0) as journal:
        journal.append(Reopened(request=accepted[0].request, reason="its file is lost"))
    assert len(list(run.samples())) == len(accepted) - 1
    with Journal.open(folder.journal, lambda: 0.0) as journal:
        journal.append(accepted[0])
    again = list(run.samples())
    assert (len(again), again[-1].reward) == (len(accepted), accepted[0].reward)


def test_a_picture_outside_the_run_folder_is_not_named(tmp_path, monkeypatch):
    """The journal of another may name any file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    records = [
        Record(r.seq, r.at, type(r.event)(**{**_fields(r.event), "payload": "../../secret.png"}))
        if isinstance(r.event, Accepted)
        else r
        for r in story()
    ]
    assert all(sample.picture is None for sample in spotlight.open(write_run(records).path).samples())


def _fields(event: Accepted) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_a_simulated_run_is_a_run_that_has_ended(simulated):
    assert simulated.name == "sim-words-nft-1"
    status = simulated.wait(timeout_s=10)
    assert (status.state, len(status.iterations)) == ("finished", 2)
    assert simulated.audit().clean
    assert [row["iteration"] for row in simulated.curve()] == [0, 1, 2]
    assert all(math.isfinite(sample.reward) for sample in simulated.samples("rollout"))
    assert simulated.report().read_text().startswith("<!doctype html>")


def test_simulations_work_inside_an_event_loop_as_in_a_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def cell() -> tuple[float, float]:
        recipe = spotlight.load_recipe("words-nft", TINY)
        (forecast,) = spotlight.plan(recipe, [1])
        return forecast.hours, spotlight.simulate(recipe, "cpu-words").status().seconds

    hours, seconds = asyncio.run(cell())
    assert hours > 0
    assert seconds > 0


def test_setups_are_compared_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = spotlight.load_recipe("words-nft", {**TINY, "iterations": 3})
    found = spotlight.compare(task, ["reserved-only", "spot-no-explore"], "h200-qwen-image-512", seeds=[1])
    assert [one.setup for one in found.comparison.endings] == ["reserved-only", "spot-no-explore"]
    assert {curve.seed for curve in found.curves} == {1}


def test_an_order_to_a_run_that_does_not_run_is_refused(run):
    with pytest.raises(spotlight.InputError, match="is not running on this machine"):
        run.drain()


@pytest.mark.slow
def test_user_code_type_checks_strictly_and_a_misspelt_name_does_not(tmp_path):
    """Against the installed package, outside of the checkout."""
    (tmp_path / "use.py").write_text((ROOT / "tests/user/typed_use.py").read_text())
    (tmp_path / "wrong.py").write_text("import spotlight\nspotlight.trian()\nname: int = spotlight.open('a').name\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache"]
    use = subprocess.run([*mypy, "use.py"], cwd=tmp_path, capture_output=True, text=True)
    assert use.returncode == 0, use.stdout
    wrong = subprocess.run([*mypy, "wrong.py"], cwd=tmp_path, capture_output=True, text=True)
    assert [line.partition(":")[2][:1] for line in wrong.stdout.splitlines()[:-1]] == ["2", "3"], wrong.stdout
