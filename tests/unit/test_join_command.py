"""`spotlight join` and `spotlight token` on the command line, and the addresses at which a machine reaches a run."""

import asyncio
import json
import os
import shlex
import signal

import pytest
from command_line import spotlight
from join_stories import listening

from spotlight.folder import RunFolder
from spotlight.pools import joining
from spotlight.pools.join_pool import joining_lines
from spotlight.pools.joining import JoiningMachine, JoinOptions, reached_at
from spotlight.pools.tokens import RunSecrets, TokenFile, token_file_of

ADDRESS = "127.0.0.1:1"
"""No program listens at this port."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Folder of a run that has listened."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = RunFolder(tmp_path / "run-1")
    folder.journal.mkdir(parents=True)
    folder.write_config({})
    RunSecrets(folder.path).listens_at(ADDRESS)
    return folder.path


def test_token_to_a_dash_prints_the_file_alone(run, tmp_path):
    printed = spotlight("token", run, "--out", "-")
    assert spotlight("token", run, "--out", tmp_path / "t.json").code == 0
    assert (printed.code, printed.out) == (0, (tmp_path / "t.json").read_text())
    assert json.loads(printed.out)["address"] == ADDRESS
    assert not (tmp_path / "-").exists()
    written = json.loads(spotlight("token", run, "--out", tmp_path / "u.json", "--json").out)
    assert written == {"file": str(tmp_path / "u.json"), "address": ADDRESS, "run": str(run)}


def test_token_prints_a_command_that_can_be_pasted_whatever_the_file_is_called(run, tmp_path):
    shown = spotlight("token", run, "--out", tmp_path / "a file; \x1b[2J.json").out.splitlines()
    assert "\x1b" not in "".join(shown)
    assert shlex.split(shown[-1]) == ["spotlight", "join", ADDRESS, "--token-file", "a file; \\x1b[2J.json"]


@pytest.mark.parametrize(("given", "dialled"), [((), ADDRESS), (("127.0.0.1:2",), "127.0.0.1:2")])
def test_join_dials_the_given_address_else_that_of_the_token_file(run, tmp_path, monkeypatch, given, dialled):
    monkeypatch.setattr("spotlight.pools.joining.GRACE_S", 0.0)
    spotlight("token", run, "--out", tmp_path / "t.json")
    refused = spotlight("join", *given, "--token-file", tmp_path / "t.json", "--folder", tmp_path / "joined")
    assert refused.code == 3
    assert f"no run can be reached at {dialled}" in refused.err


def test_join_with_an_address_in_the_token_file_that_is_none_is_refused(tmp_path):
    TokenFile(address="here", fingerprint="", token="", run="run-1").write(tmp_path / "t.json")
    refused = spotlight("join", "--token-file", tmp_path / "t.json")
    assert (refused.code, "'here' is not HOST:PORT" in refused.err) == (2, True)


@pytest.mark.parametrize("address", ["trainer.example:7700", "[fd00::5]:7700"])
def test_machine_reaches_controller_and_blobs_at_the_host_that_it_has_dialled(tmp_path, address):
    async def story():
        async with listening(tmp_path) as run:
            given = (await run.joined()).agent
            launch = reached_at(given, address)
            host = address.rpartition(":")[0]
            assert (launch.controller, launch.blobs) == (address, f"{host}:{given.blobs.rpartition(':')[2]}")

    asyncio.run(story())


class SlowMachine:
    """Its imports do not end."""

    is_stopped = False

    def __init__(self, *_: object) -> None:
        pass

    async def start(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    async def stop(self) -> None:
        SlowMachine.is_stopped = True


def test_machine_that_is_stopped_during_its_imports_leaves_without_waiting_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "Machine", SlowMachine)

    async def story():
        async with listening(tmp_path) as run, asyncio.timeout(60):
            options = JoinOptions(token_file=token_file_of(run.folder), name="box", folder=tmp_path / "joined")
            await JoiningMachine(options, lambda line: None).serve()
            assert (SlowMachine.is_stopped, run.pool.nodes()) == (True, ())

    asyncio.run(story())


def test_user_of_the_run_sees_machines_join_and_go(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            lines: list[str] = []
            run.pool.announce = lines.append
            launch = await run.joined("box", slots=2)
            await run.dialled(run.join(previous=launch.agent.token, leaves=True))
            assert lines == ["box.1 joins: 2 spot slots", "box.1 is gone: its machine reports its end"]

    asyncio.run(story())


def test_line_to_paste_is_a_command_and_says_when_other_machines_cannot_use_the_address():
    first, line = joining_lines("10.0.0.5:7700", "words-1")
    assert line.split() == ["spotlight", "join", "10.0.0.5:7700", "--token-file", "words-1.token.json"]
    assert "cannot reach" not in first
    assert shlex.split(joining_lines("10.0.0.5:7700", "a run; x")[1])[-1] == "a run; x.token.json"
    for address in ("127.0.0.1:7700", "localhost:7700", "[::1]:7700"):
        assert "cannot reach" in joining_lines(address, "words-1")[0]
