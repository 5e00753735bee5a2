"""What verbs print: data on standard output, as one object with `--json`; hints and progress on standard error."""

import io
import json
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight
from document_commands import problems_with
from journal_stories import CALM, HandClock
from story_journal import story
from typer.main import get_command
from typer.testing import CliRunner

from spotlight.config import load_config, recipe_names
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import ProblemNoted, Record
from spotlight.core.journal import Journal
from spotlight.folder import OutputConfig, RunFolder
from spotlight.surface.cli.main import app
from spotlight.surface.projections import RunView
from spotlight.surface.run_lines import EvaluationLine, IterationDoneLine, JsonLines, ProblemLine, StartedLine

WITHOUT_DATA = {"join"}
"""Verbs that work until they are stopped and have no result."""
SMALL = ("--set", "iterations=1", "rollout.prompts=2", "rollout.group_size=2", "eval.prompts=2", "explore.enabled=off")
VERBS = {
    "status": ["RUN"], "audit": ["RUN"], "report": ["RUN"], "list": [], "rewards": ["jpeg"], "doctor": [],
    "plan": ["words-nft", "--spot", "1", *SMALL], "sim": ["words-nft", "--profile", "cpu-words", *SMALL],
    "clean": ["RUN", "--yes"],
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(OutputConfig(), "words-nft")
    folder.write_config(load_config("words-nft").model_dump(mode="json"))
    clock = HandClock(0.0)
    with Journal.create(folder.journal, clock.now, CALM) as journal:
        for record in story(2):
            clock.seconds = record.at
            journal.append(record.event)
    (folder.path / "images").mkdir()
    (folder.path / "images" / "a.png").write_bytes(b"x")
    return folder


def test_every_verb_with_a_result_takes_json():
    commands = get_command(app).commands  # type: ignore[attr-defined]
    without = {name for name, command in commands.items() if not any("--json" in each.opts for each in command.params)}
    assert without == WITHOUT_DATA


@pytest.mark.parametrize("verb", VERBS)
def test_json_is_all_of_standard_output_and_there_is_no_hint(run: RunFolder, verb: str):
    arguments = [run.name if each == "RUN" else each for each in VERBS[verb]]
    shown = spotlight(verb, *arguments, "--json")
    assert shown.code in (0, 1), shown.err
    assert json.loads(shown.out)
    assert "next: " not in shown.err


@pytest.mark.parametrize("verb", VERBS)
def test_a_hint_names_a_command_that_exists(run: RunFolder, verb: str):
    arguments = [run.name if each == "RUN" else each for each in VERBS[verb]]
    shown = spotlight(verb, *arguments)
    hints = [line for line in shown.err.splitlines() if line.startswith("next: ")]
    assert len(hints) == 1
    command = hints[0].removeprefix("next: ").partition("     #")[0]
    assert problems_with(command.replace(str(run.path.parent), "runs").replace(run.name, "RUN")) == []
    assert "next: " not in shown.out


def test_lines_of_train_are_typed_and_in_the_order_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    records = story(2, finished=False)
    noted = Record(len(records), records[-1].at, ProblemNoted(source="wandb", problem="it is away"))
    with JsonLines(tmp_path / "run", 2, RunView(), PriceTable.load()) as lines:
        for record in [*records, noted]:
            lines.apply(record)
    kinds = StartedLine | IterationDoneLine | EvaluationLine | ProblemLine
    found = [msgspec.json.decode(line, type=kinds) for line in out.getvalue().splitlines()]
    assert [type(line).__name__ for line in found] == [
        "StartedLine", "EvaluationLine", "IterationDoneLine", "EvaluationLine", "IterationDoneLine", "EvaluationLine",
        "ProblemLine",
    ]  # fmt: skip
    view = lines.view
    assert found[1] == EvaluationLine(iteration=0, seconds=view.evaluations[0].at, scores=view.evaluations[0].scores)
    assert found[4] == IterationDoneLine(
        iteration=1,
        seconds=view.iterations[1].at,
        rollout_s=8.0,
        train_s=6.0,
        reward=0.55,
        preemptions=len(view.timeline.preemptions),
        dollars=found[4].dollars,
    )
    assert 0 < found[2].dollars < found[4].dollars


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("spotlight stat", ["status"]),
        ("spotlight status wor", ["words-nft-1"]),
        ("spotlight resume runs/wor", ["runs/words-nft-1"]),
        ("spotlight train words-n", ["words-nft"]),
        ("spotlight plan words-nft+spotlight-f", ["words-nft+spotlight-fixed"]),
        ("spotlight train mi", ["mine.yaml"]),
        ("spotlight clean words-nft-1 --dry", ["--dry-run"]),
    ],
)
def test_the_shell_completes_verbs_options_runs_and_recipes(run: RunFolder, words: str, expected: list[str]):
    Path("mine.yaml").write_text("extends: words-nft\n")
    assert "words-nft" in recipe_names()
    asked = {"_SPOTLIGHT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    shown = CliRunner().invoke(app, [], env=asked, prog_name="spotlight")
    assert shown.stdout.split() == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed_for_the_usual_shells(shell: str, monkeypatch: pytest.MonkeyPatch):
    """Typer names the shell by its parent process, which is none of them where tests run unattended."""
    monkeypatch.setattr("typer._completion_shared.shellingham.detect_shell", lambda: (shell, shell))
    shown = CliRunner().invoke(app, ["--show-completion"], prog_name="spotlight")
    assert "_SPOTLIGHT_COMPLETE" in shown.stdout
