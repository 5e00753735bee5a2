"""Texts of others cannot break or control the terminal, the output of `--json`, or the file system.

Pages and reports: tests/unit/test_report.py; trackers: test_trackers.py; metrics: test_metrics.py.
"""

import io
import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight
from journal_stories import CALM, HandClock
from rich.console import Console
from story_journal import story

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import ConfigError
from spotlight.core.events import Evaluated, ProblemNoted, Record, RunStarted, RunStopped
from spotlight.core.journal import Journal
from spotlight.core.node_spec import NodeStanding, NodeState
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.surface.api import override_of
from spotlight.surface.cli.hints import hint
from spotlight.surface.liveness import standing_of
from spotlight.surface.panel import Lines, machine_lines, panel
from spotlight.surface.plain_text import plain, plain_lines
from spotlight.surface.projections import RunView
from spotlight.surface.terminal import PlainConsole

HOSTILE = (
    "[/red][bold]<script>alert(1)</script> \x1b]0;owned\x07\x1b[2J\x1b[31m\r\n\x9b31m\u202egnp.exe\u2066 \x00 "
    + "w" * 3000
)
STYLES = re.compile(r"\x1b\[[0-9;]*m")
"""What rich itself writes to colour a text."""
NAME = "a run [bold]\x1b[2J\u202e'; rm -rf ~ #"


def assert_harmless(shown: str, styled: bool = False) -> None:
    text = STYLES.sub("", shown) if styled else shown
    hostile = sorted({hex(ord(each)) for each in text if not each.isprintable() and each not in "\n\t"})
    assert hostile == []


def hostile_story() -> list[Record]:
    """A run that is hostile in every text that its journal has."""

    def altered(event: object) -> object:
        match event:
            case RunStarted():
                return msgspec.structs.replace(event, recipe=HOSTILE)
            case Evaluated():
                return msgspec.structs.replace(event, scores={HOSTILE: (0.5, 0.4, 0.6)})
            case RunStopped():
                return msgspec.structs.replace(event, reason=HOSTILE, finished=False)
            case _:
                return event

    events = [(record.at, altered(record.event)) for record in story(2)]
    last = events.pop()
    events += [(last[0], ProblemNoted(source=HOSTILE, problem=HOSTILE)), last]
    return [Record(seq, at, event) for seq, (at, event) in enumerate(events)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder that came from elsewhere: no run is started under such a name."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "runs" / NAME)
    folder.path.mkdir(parents=True)
    folder.write_config(load_config("words-nft").model_dump(mode="json"))
    clock = HandClock(0.0)
    with Journal.create(folder.journal, clock.now, CALM) as journal:
        for record in hostile_story():
            clock.seconds = record.at
            journal.append(record.event)
    (folder.path / "logs").mkdir()
    (folder.path / "logs" / f"{NAME}.log").write_text(HOSTILE + "\n")
    return folder


def console(is_terminal: bool) -> PlainConsole:
    return PlainConsole(
        file=io.StringIO(), force_terminal=is_terminal, width=100, markup=False, emoji=False, highlight=False
    )


def written(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def test_the_live_panel_shows_hostile_texts_as_text():
    records, prices, out = hostile_story(), PriceTable.load(), console(is_terminal=True)
    view = RunView.of(records)
    out.print(panel(view, 2, prices, standing_of(view)))
    shown = STYLES.sub("", written(out))
    assert_harmless(written(out), styled=True)
    assert "[/red][bold]<script>" in shown
    assert "\\x1b[2J" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_machines_with_hostile_zones_and_addresses_are_one_line_each():
    hostile = NodeStanding(
        node=NodeId(HOSTILE), place=HOSTILE, slot_class=SlotClass.SPOT, slots=1, zone=HOSTILE, state=NodeState.CONNECTED
    )
    shown = machine_lines([hostile, hostile]).plain
    assert_harmless(shown)
    assert len(shown.splitlines()) == 2


def test_plain_lines_of_a_run_stay_one_line_each():
    records, prices, out = hostile_story(), PriceTable.load(), console(is_terminal=False)
    lines = Lines(RunView(), 2, prices, out)
    for record in records:
        lines.apply(record)
    assert_harmless(written(out))
    assert len([line for line in written(out).splitlines() if "[/red][bold]<script>" in line]) == 5


@pytest.mark.parametrize("verb", [["status"], ["audit"], ["report"], ["logs"], ["watch"], ["clean", "--dry-run"]])
def test_verbs_on_a_hostile_run_print_text(run: RunFolder, verb: list[str]):
    first, *rest = verb
    shown = spotlight(first, run.path, *rest)
    assert shown.code in (0, 1), shown.err
    assert shown.out
    assert_harmless(shown.out + shown.err)


def test_list_shows_a_hostile_run_beside_others(run: RunFolder):
    shown = spotlight("list")
    assert shown.code == 0
    assert_harmless(shown.out + shown.err)
    assert "[bold]" in shown.out


@pytest.mark.parametrize(
    "changed",
    [{"iterations": None}, {"iterations": "many"}, {"iterations": 10**400}, {"rollout": 5}, {"cluster": None}],
)
def test_a_folder_with_foreign_settings_is_one_unreadable_row_of_the_list(run: RunFolder, changed: dict[str, object]):
    settings = {**run.read_config(), **changed}
    run.config.write_text(json.dumps(settings))
    (row,) = json.loads(spotlight("list", "--json").out)
    assert row["state"] == "unreadable"
    assert "cannot be read" in row["reason"]
    assert spotlight("status", run.path).code == 2


@pytest.mark.parametrize("verb", ["status", "audit", "list", "logs", "watch", "report", "clean"])
def test_objects_are_valid_whatever_they_hold(run: RunFolder, verb: str):
    more = {"list": ["runs"], "clean": [run.path, "--dry-run"]}.get(verb, [run.path])
    shown = spotlight(verb, *more, "--json")
    found = [json.loads(line) for line in shown.out.splitlines()]
    assert found
    assert_harmless(shown.out)


def test_a_refusal_that_quotes_hostile_input_is_one_harmless_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    hostile = HOSTILE.replace("\x00", "")
    for arguments in (
        ["status", hostile],
        ["train", hostile],
        ["train", "words-nft", "--set", f"model.name='{hostile}'"],
    ):
        shown = spotlight(*arguments)
        assert shown.code == 2
        assert_harmless(shown.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../../etc", "a/b", ".", "..", "", ".hidden", "-rf", " a", "a ", "a\n", "a\x1b[2J", "\u202eabc", "é" * 101]
)
def test_a_run_has_a_name_that_is_one_folder(name: str):
    with pytest.raises(ConfigError, match="a run's name is one folder's"):
        load_config("words-nft", [override_of("output.name", name)])


@pytest.mark.parametrize("name", ["demo-1", "it's mine", "größe 2", "日本", "a;b$(c)"])
def test_ordinary_names_of_any_language_are_taken(name: str):
    assert load_config("words-nft", [override_of("output.name", name)]).output.name == name


def test_a_hint_can_be_pasted_whatever_the_name_is(capsys: pytest.CaptureFixture[str]):
    hint("status", "a run; rm -rf ~ $(x) `y` 'z'")
    command = capsys.readouterr().err.removeprefix("next: ").strip()
    assert shlex.split(command) == ["spotlight", "status", "a run; rm -rf ~ $(x) `y` 'z'"]


def test_a_run_is_named_in_a_command_so_that_the_command_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert RunFolder(tmp_path / "runs" / "demo-1").word == "demo-1"
    assert RunFolder(tmp_path / "runs" / "a run; x").word == "'a run; x'"
    assert RunFolder(tmp_path / "elsewhere" / "demo-1").word == str(tmp_path / "elsewhere" / "demo-1")


def test_plain_text_keeps_what_people_write():
    assert plain("größe 日本 😀 a_b [x] €") == "größe 日本 😀 a_b [x] €"
    assert plain("a\nb\tc") == "a\\nb\\tc"
    assert plain_lines("a\nb\tc\r") == "a\nb\tc\\r"
    assert plain("x" * 5000).endswith("x…")
    assert len(plain("x" * 5000)) == 2000
