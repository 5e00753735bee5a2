"""Commands of the documents are run: readers on a recorded run, `train` as a dry run, long ones shortened.

Every command has a test that runs it, or its program a reason in `shown_commands.NOT_RUN`. Those of a live run are in
tests/processes/test_document_stories.py.
"""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import shellingham
import torch
from asgi_client import request
from command_line import spotlight
from document_commands import help_of, recipes
from made_run import made_run
from recorded_folder import recorded_folder
from shown_commands import NOT_RUN, ROOT, SHOWN, Runner, filled, run_by, runner_of
from story_journal import story
from test_data_and_rewards import BLOCK, PAGE

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.random_weights import write_tiny
from spotlight.config import load_config
from spotlight.surface.cli.overrides import PLAIN_KEYS, one_value_each
from spotlight.surface.dashboard.serving import _PageServer

RAY = "ray"
"""A call with it needs a Ray cluster: without one it is refused with exit code 3."""
RECIPE, PROFILE = "words-nft", "cpu-words"


# --- every command ---


def unrun(commands: list[str]) -> list[str]:
    """Those that no test runs, and whose programs have no reason."""
    return [command for command in commands if runner_of(command) is None and command.split()[0] not in NOT_RUN]


def test_every_shown_command_is_run_by_a_test_or_its_program_has_a_reason():
    assert unrun(SHOWN) == []
    assert {command.split()[0] for command in SHOWN if runner_of(command) is None} == set(NOT_RUN), "no idle reason"


@pytest.mark.parametrize("runner", Runner)
def test_every_runner_is_a_test_that_runs_commands(runner):
    path, _, name = runner.partition("::")
    source = (ROOT / path).read_text()
    assert re.search(rf"^def {name}\(", source, re.MULTILINE)
    assert f"run_by(Runner.{runner.name})" in source
    assert run_by(runner)


def test_a_command_that_nothing_runs_is_found():
    strange = ["spotlight", "spotlight trane words-nft", "sky launch launch/skypilot/spot.yaml", "curl -s localhost"]
    assert unrun([*strange, "spotlight status RUN", "docker stop"]) == strange


@pytest.mark.parametrize("call", run_by(Runner.MAKE), ids=" ".join)
def test_a_shown_target_can_be_made(call):
    planned = subprocess.run(["make", "-n", *call], cwd=ROOT, capture_output=True, text=True)
    assert planned.returncode == 0, planned.stderr
    assert all(value in planned.stdout.split() for _, equals, value in (w.partition("=") for w in call) if equals)


class FlagsParsed(Exception):
    """The benchmark has accepted its flags."""


@pytest.mark.parametrize("call", run_by(Runner.BENCHMARK), ids=" ".join)
def test_flags_of_a_shown_benchmark_are_parsed(call, monkeypatch):
    _, module, *flags = (word.replace("NAME", "planner") for word in call)
    parse = argparse.ArgumentParser.parse_args
    help_of(module.removeprefix("benchmarks."))

    def parsed(self: argparse.ArgumentParser) -> None:
        parse(self)
        raise FlagsParsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [module, *flags])
    with pytest.raises(FlagsParsed):
        runpy.run_module(module, run_name="__main__")


@pytest.mark.parametrize("command", [each for each in SHOWN if runner_of(each) is Runner.SHELL])
def test_a_shown_line_of_the_shell_writes_its_file(command, tmp_path):
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    assert len(run_by(Runner.SHELL)) == 4
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(written) == set(re.findall(r"> (\S+)$", command))
    if "demo.csv" in written:
        assert written["demo.csv"] == (ROOT / "src/spotlight/assets/traces/demo.csv").read_text()


# --- commands that cost little ---


@pytest.mark.parametrize("call", run_by(Runner.NAME), ids=" ".join)
def test_a_verb_that_is_only_named_asks_for_what_it_lacks(call):
    outcome = spotlight(*call)
    assert outcome.code == 2
    assert re.search("Missing (argument|option)|requires an argument", outcome.err), outcome.err


@pytest.mark.usefixtures("run")
def test_every_shown_command_that_reads_a_run_works_on_a_recorded_one():
    calls = run_by(Runner.READER)
    for call in sorted(calls, key=lambda call: call[0] == "clean"):
        outcome = spotlight(*call, *(["--yes"] if call[0] == "clean" else []))
        assert outcome.code == 0, (call, outcome.err)
        assert outcome.out or outcome.err, call
        if "--json" in call:
            json.loads(outcome.out)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.LOOK), ids=" ".join)
def test_every_shown_command_that_looks_at_this_machine_works(call):
    outcome = spotlight(*filled(call, RECIPE=RECIPE))
    # The doctor may find something missing here, which is 3.
    assert outcome.code == 0 or (call[0] == "doctor" and outcome.code == 3), outcome.err
    assert outcome.out


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("call", run_by(Runner.PAGE), ids=" ".join)
def test_a_shown_dashboard_serves_its_page(call, monkeypatch):
    pages, opened = [], []

    def served(server: _PageServer, sockets: object) -> None:
        pages.append(request(server.config.app, "/runs/RUN"))

    monkeypatch.setattr(_PageServer, "run", served)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    outcome = spotlight(*call)
    assert outcome.code == 0, outcome.err
    (address,) = re.findall("http://127.0.0.1:[0-9]+/", outcome.out)
    assert opened == ([address] if "--open" in call else [])
    assert [(page.status, "<h1>" in page.text) for page in pages] == [(200, True)]


@pytest.mark.parametrize("call", run_by(Runner.COMPLETION), ids=" ".join)
def test_shown_completion_is_installed(call, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    outcome = spotlight(*call)
    assert outcome.code == 0, outcome.err
    # The name of the program is that of the test's own process.
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


def overrides_of(call: list[str]) -> list[str]:
    """The settings that a call changes."""
    words = one_value_each(call)
    pairs = list(pairwise(words))
    plain = [value for option, value in pairs if option == "--set"]
    keys = [(option.removeprefix("--"), value) for option, value in pairs if option.startswith("--")]
    return plain + [f"{key}={value}" for key, value in keys if "." in key or key in PLAIN_KEYS]


def test_the_settings_of_every_shown_command_make_a_run():
    runners = (Runner.DRY_RUN, Runner.SIMULATION, Runner.COMPARISON)
    calls = [filled(call, RECIPE=RECIPE, PROFILE=PROFILE, RUN="words") for each in runners for call in run_by(each)]
    assert len(calls) > 30
    assert any("cluster.notices=[aws, sigterm, 'file:/run/preempted']" in overrides_of(call) for call in calls)
    for call in calls:
        named = call[1] if len(call) > 1 and not call[1].startswith("--") else "demo"
        assert set(named.split("+")) <= recipes()
        load_config(named, overrides_of(call), is_stored=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run with the name RUN, in the working folder's runs/."""
    monkeypatch.chdir(tmp_path)
    folder = recorded_folder(tmp_path / "runs/RUN", story(iterations=5))
    (folder.path / "logs").mkdir()
    (folder.path / "logs/spot-1.1-0.log").write_text("a line\n")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The prompts and rewards that pages write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for _, name, content in BLOCK.findall(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(content)
    for command in SHOWN:
        if command.startswith("printf "):
            subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    yield
    for name in ("my_reward", "mine"):
        sys.modules.pop(name, None)


# --- commands that compute ---


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.DRY_RUN), ids=" ".join)
def test_a_shown_train_command_passes_its_checks(call, tmp_path):
    without = [word for word in call if word not in ("--background", "--dry-run")]
    if "RUN" in call:
        made_run(tmp_path / "runs/RUN")
    outcome = spotlight(*filled(without, RECIPE=RECIPE, PROFILE=PROFILE, RUN="RUN"), "--dry-run")
    assert outcome.code == (3 if RAY in call else 0), outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.SIMULATION), ids=" ".join)
def test_a_shown_simulation_runs(call):
    shorter = ["--set", "iterations=2"] if call[0] == "sim" else []
    outcome = spotlight(*call, *shorter)
    assert outcome.code == 0, outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.COMPARISON), ids=" ".join)
def test_a_shown_comparison_runs(call, tmp_path):
    outcome = spotlight(*call, "--seeds", "1", "--set", "iterations=4", "eval.every=2")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "runs/compare/compare.png").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.EVALUATION), ids=" ".join)
def test_a_shown_evaluation_scores(call, tmp_path):
    made_run(tmp_path / "runs/RUN")
    write_tiny(FAMILIES["sd3"], tmp_path / "model")
    values = {"RUN": "RUN", "FOLDER": tmp_path / "model", "FILE": "mine.txt", "NAME": "mine:bright"}
    shorter = ("--count", "2", "--steps", "2", *(("--size", "64x64") if "--size" in call else ()))
    outcome = spotlight(*filled(call, **values), *shorter, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.MEASUREMENT), ids=" ".join)
def test_a_shown_profile_is_measured(call, tmp_path):
    """Those of a GPU get as far as the refusal where there is none."""
    if "cuda" in call and torch.cuda.is_available():
        pytest.skip("20 billion parameters take minutes, and the benchmark h200 measures them")
    outcome = spotlight(*filled(call, N=1), "--quick", *(() if "--only" in call else ("--only", "decode")))
    if "cuda" in call:
        assert (outcome.code, "cuda" in outcome.err) == (3, True), outcome.err
        return
    assert outcome.code == 0, outcome.err
    (written,) = tmp_path.glob("*words.json")
    assert json.loads(written.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("call", run_by(Runner.PRETRAINING), ids=" ".join)
def test_a_shown_pretraining_makes_weights(call, tmp_path):
    shorter = ("--device", "cpu", "--steps", "1", "--batch", "2", "--bank", "8")
    outcome = spotlight(*call, *shorter, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out.splitlines()[-1])["step"] == 1
    assert list((tmp_path / f"runs/pretrain-{call[1]}").rglob("*.safetensors"))
