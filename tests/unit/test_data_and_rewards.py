"""The guide to own prompts and rewards: its files are written and its commands run, `train` as a dry run."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from command_line import spotlight

PAGE = Path(__file__).parents[2] / "docs" / "data_and_rewards.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the files of the page."""
    monkeypatch.chdir(tmp_path)
    # The forecast of a dry run, a simulation, is the subject of test_plan.py.
    monkeypatch.setattr("spotlight.surface.fleets.OWN_PROFILES", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    for _, name, content in BLOCK.findall(PAGE.read_text()):
        if name:
            (tmp_path / name).write_text(content)
    yield tmp_path
    sys.modules.pop("my_reward", None)


def commands() -> list[list[str]]:
    blocks = [content for language, _, content in BLOCK.findall(PAGE.read_text()) if language == "sh"]
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_command_of_the_guide_has_the_outcome_that_the_guide_describes(folder, command):
    outcome = spotlight(*command, *(["--dry-run"] if command[0] == "train" else []))
    assert outcome.code == 0, outcome.err
    if command[0] == "rewards":
        assert "Standard deviation of the pixels" in outcome.out
        assert "needs a word to draw" in outcome.out
    if "words.txt" in command and command[0] == "train":
        assert ("2 training and 1 held-out" if "0.5" in command else "3 training") in outcome.err


def test_the_guide_has_commands_and_files(folder):
    assert {command[0] for command in commands()} == {"train", "evaluate", "rewards"}
    assert sorted(path.name for path in folder.iterdir()) == ["my_reward.py", "new_words.jsonl", "words.txt"]
