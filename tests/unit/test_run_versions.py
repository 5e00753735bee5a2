"""Run folders of other versions: read where nothing is missing, otherwise refused with the version."""

import json
import re
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest
from asgi_client import request
from command_line import spotlight
from recorded_folder import recorded_folder
from story_journal import story

import spotlight as api
from spotlight.control.explore.config import Timing
from spotlight.control.market.prices import PriceTable
from spotlight.core import segments
from spotlight.core.run_version import writer_of
from spotlight.folder import RunFolder
from spotlight.surface.cli.train import stored_config, version_remarks
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.run_index import RunIndex

NEWER = "7.0.0"
READERS = (
    ["status", "RUN"], ["status", "RUN", "--json"], ["report", "RUN"], ["audit", "RUN"], ["watch", "RUN"],
    ["clean", "RUN", "--yes"], ["resume", "RUN"],
)  # fmt: skip
"""Verbs that read the journal."""


def other_header(run: RunFolder) -> None:
    """Its journal has the format 9."""
    for path in segments.list_segments(run.journal):
        data = path.read_bytes()
        magic, _, first, _ = segments.HEADER.unpack_from(data)
        plain = segments.HEADER.pack(magic, 9, first, 0)[: -segments.CHECKSUM.size]
        path.write_bytes(plain + segments.CHECKSUM.pack(zlib.crc32(plain)) + data[segments.HEADER.size :])


def other_record(run: RunFolder) -> None:
    """Its fourth record has a field that this version does not have."""
    (path,) = segments.list_segments(run.journal)
    segment = segments.load_segment(path, 0, 0)
    content = segment.data[: segments.HEADER.size]
    for number, start in enumerate(segment.offsets):
        _, length, _ = segments.FRAME.unpack_from(segment.data, start)
        body = segment.data[start + segments.FRAME.size : start + segments.FRAME.size + length]
        if number == 3:
            record = msgspec.msgpack.decode(body)
            record["event"]["colour"] = "blue"
            body = msgspec.msgpack.encode(record)
        content += segments.pack_frame(body)
    path.write_bytes(content)


def other_settings(run: RunFolder) -> None:
    """A later version has more settings."""
    settings = json.loads(run.config.read_text())
    settings["explore"]["colour"] = "blue"
    run.config.write_text(json.dumps(settings))


def fewer_settings(run: RunFolder) -> None:
    """An earlier version did not have these yet, nor did it store its number."""
    settings = json.loads(run.config.read_text())
    del settings["explore"]["timing"], settings["budget"], settings["spotlight"]
    run.config.write_text(json.dumps(settings))


def as_of(version: str, run: RunFolder) -> None:
    settings = json.loads(run.config.read_text())
    run.config.write_text(json.dumps({**settings, "spotlight": version}))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_folder(tmp_path_factory.mktemp("versions") / "run", story(), pictures=0).path


@pytest.fixture
def run(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded, tmp_path / "runs" / "mine")
    return RunFolder(tmp_path / "runs" / "mine")


def refused(*verb: str) -> str:
    """The one sentence of a refusal."""
    outcome = spotlight(*("mine" if word == "RUN" else word for word in verb))
    assert outcome.code == 2, outcome
    (sentence,) = [line for line in outcome.err.splitlines() if not line.startswith("next: ")]
    return sentence


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (other_header, "a journal of format 9 instead of 1"),
        (other_record, r"a record of an unknown kind \(Object contains unknown field `colour`.*; record 3 of"),
    ],
)
def test_verbs_that_read_the_journal_of_a_later_version_name_it_and_what_to_install(run, change, found):
    change(run)
    as_of(NEWER, run)
    before = sorted((path, path.stat().st_mtime_ns) for path in run.path.rglob("*"))
    for verb in READERS:
        sentence = refused(*verb)
        assert f"the run mine was written by spotlight {NEWER}: it has " in sentence
        assert re.search(found, sentence), sentence
        assert f"install spotlight-rl=={NEWER} in an environment of its own to open it, or start a new run" in sentence
    assert sorted((path, path.stat().st_mtime_ns) for path in run.path.rglob("*")) == before
    with pytest.raises(api.InputError, match=f"was written by spotlight {NEWER}"):
        api.open(run.path).status()


def test_a_folder_of_another_build_with_the_same_number_says_so(run):
    other_record(run)
    assert "was written by another build of spotlight: it has" in refused("status", "RUN")


def test_list_and_page_show_the_other_runs_and_the_sentence_of_that_run(run):
    other_header(run)
    as_of(NEWER, run)
    shutil.copytree(run.path, run.path.parent / "second")
    shown = json.loads(spotlight("list", "--json").out)
    assert [(row["state"], f"spotlight {NEWER}" in row["reason"]) for row in shown] == [("unreadable", True)] * 2
    app = dashboard_app(RunIndex(run.path.parent, PriceTable.load()))
    for address in ("/", "/runs/mine"):
        assert f"was written by spotlight {NEWER}" in request(app, address).text


def test_resume_of_a_run_with_a_later_setting_is_refused_with_its_name(run):
    other_settings(run)
    as_of(NEWER, run)
    sentence = refused("resume", "RUN")
    assert f"the run mine was written by spotlight {NEWER}: it has the setting explore.colour, which" in sentence
    assert spotlight("status", "mine").code == 0, "its journal can be read"


def test_resume_of_an_earlier_version_s_run_gives_new_settings_their_defaults_and_says_so(run):
    fewer_settings(run)
    assert "nothing is left to do" in spotlight("resume", "mine").err
    config = stored_config(run)
    assert (config.explore.timing, config.budget.max_hours) == (Timing.BESIDE, None)
    assert list(version_remarks(run, config)) == [
        f"the run was written by an earlier version and goes on with {api.__version__}, whose results may differ in "
        "the last bits.",
        "settings that it does not have take their defaults: explore.timing, budget.",
    ]


def test_a_run_has_the_version_that_wrote_it_last(run):
    assert writer_of(run.path) == api.__version__
    assert "spotlight" not in run.read_config(), "it is no setting"
    assert list(version_remarks(run, stored_config(run))) == []
