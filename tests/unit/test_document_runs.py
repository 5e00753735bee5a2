"""Commands of the documents are run: readers on a recorded run, `train` as a dry run, simulations shortened."""

import json
import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import spotlight
from document_commands import commands_in, recipes
from recorded_folder import recorded_folder
from story_journal import story
from test_data_and_rewards import BLOCK, PAGE
from test_document_commands import DOCUMENTS, ROOT

from spotlight.config import load_config
from spotlight.surface.cli.overrides import PLAIN_KEYS, one_value_each

READERS = ("status", "report", "audit", "list", "logs", "clean", "watch")
SHOWN = sorted({command for document in DOCUMENTS for command in commands_in((ROOT / document).read_text())})
CALLS = [shlex.split(each.replace(" [RECIPE]", ""))[1:] for each in SHOWN if each.startswith("spotlight ")]
RAY = "ray"
"""A call with it needs a Ray cluster: without one it is refused with exit code 3."""


def of_recipes(*verbs: str) -> list[list[str]]:
    """Those that name shipped recipes, or none where there is a default."""
    calls = [call for call in CALLS if call[0] in verbs]
    return [call for call in calls if all(name in recipes() for name in _recipe(call).split("+"))]


def _recipe(call: list[str]) -> str:
    return call[1] if len(call) > 1 and not call[1].startswith("--") else "demo"


def overrides_of(call: list[str]) -> list[str]:
    """The settings that a call changes."""
    words = one_value_each(call)
    pairs = list(pairwise(words))
    plain = [value for option, value in pairs if option == "--set"]
    keys = [(option.removeprefix("--"), value) for option, value in pairs if option.startswith("--")]
    return plain + [f"{key}={value}" for key, value in keys if "." in key or key in PLAIN_KEYS]


def test_the_settings_of_every_shown_command_make_a_run():
    calls = of_recipes("train", "plan", "sim", "compare", "doctor")
    assert len(calls) > 20
    assert any("cluster.notices=[aws, sigterm, 'file:/run/preempted']" in overrides_of(call) for call in calls)
    for call in calls:
        load_config(_recipe(call), overrides_of(call), is_stored=True)


@pytest.mark.usefixtures("run")
def test_every_shown_command_that_reads_a_run_works_on_a_recorded_one():
    calls = [call for call in CALLS if call[0] in READERS and "RUN" in call]
    assert {call[0] for call in calls} == set(READERS) - {"list"}
    for call in sorted([*calls, ["list"]], key=lambda call: call[0] == "clean"):
        outcome = spotlight(*call, *(["--yes"] if call[0] == "clean" else []))
        assert outcome.code == 0, (call, outcome.err)
        assert outcome.out or outcome.err, call
        if "--json" in call:
            json.loads(outcome.out)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run with the name RUN, in the working folder's runs/."""
    monkeypatch.chdir(tmp_path)
    folder = recorded_folder(tmp_path / "runs/RUN", story(iterations=5))
    (folder.path / "logs").mkdir()
    (folder.path / "logs/spot-1.1-0.log").write_text("a line\n")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts and rewards that pages write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for _, name, content in BLOCK.findall(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(content)
    (tmp_path / "mine.txt").write_text("a red boat on a lake\nrain on a tin roof\ntwo foxes in the snow\n")
    (tmp_path / "mine.py").write_text(
        "def bright(images, prompts):\n    return [float(each.mean()) for each in images]\n"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", [call for call in of_recipes("train") if "PROFILE" not in call], ids=" ".join)
def test_a_shown_train_command_passes_its_checks(call):
    without = [word for word in call if word not in ("--background", "--dry-run")]
    outcome = spotlight(*without, "--dry-run")
    assert outcome.code == (3 if RAY in call else 0), outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", [call for call in of_recipes("sim", "plan") if "--profile" in call], ids=" ".join)
def test_a_shown_simulation_runs(call):
    shorter = ["--set", "iterations=2"] if call[0] == "sim" else []
    outcome = spotlight(*call, *shorter)
    assert outcome.code == 0, outcome.err
