"""The machine's side of joining: what it reports and with which exit code it ends, before any process starts."""

import asyncio
import json
import socket
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from command_line import spotlight
from join_stories import HOST, MODEL, listening

from spotlight.core.errors import EnvironmentProblem, InputError, SpotlightError, Stopped
from spotlight.node.launch import AgentLaunch, MachineLaunch
from spotlight.pools import joining
from spotlight.pools.joining import JoiningMachine, JoinOptions, default_name
from spotlight.pools.machine import MachineSettings
from spotlight.pools.tokens import RunSecrets, TokenFile, state_folder, token_file_of


async def refused(folder: Path, token_file: TokenFile, **options: object) -> tuple[SpotlightError, list[str]]:
    """The error with which joining ends, and the lines that it shows."""
    lines: list[str] = []
    chosen = JoinOptions(**({"token_file": token_file, "name": "box", "folder": folder / "joined"} | options))
    with pytest.raises(SpotlightError) as caught:
        await JoiningMachine(chosen, lines.append).serve()
    return caught.value, lines


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(joining, "GRACE_S", 0.0)


def test_wrong_token_ends_with_the_users_exit_code_and_does_not_show_the_token(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            wrong = msgspec.structs.replace(token_file_of(tmp_path), token="not the token")
            error, lines = await refused(tmp_path, wrong)
            assert error.exit_code == InputError.exit_code
            assert "revoked" in str(error)
            assert "not the token" not in f"{error} {lines} {wrong!r}"
            assert run.pool.nodes() == ()

    asyncio.run(story())


def test_wrong_fingerprint_ends_with_the_users_exit_code(tmp_path):
    async def story():
        async with listening(tmp_path):
            wrong = msgspec.structs.replace(token_file_of(tmp_path), fingerprint="0" * 64)
            error, _ = await refused(tmp_path, wrong)
            assert error.exit_code == InputError.exit_code
            assert "0" * 64 in str(error)

    asyncio.run(story())


def test_other_source_files_end_with_the_environments_exit_code(tmp_path, monkeypatch):
    async def story():
        async with listening(tmp_path):
            monkeypatch.setattr(joining, "source_digest", lambda: "1" * 32)
            error, _ = await refused(tmp_path, token_file_of(tmp_path))
            assert error.exit_code == EnvironmentProblem.exit_code
            assert "1" * 32 in str(error)

    asyncio.run(story())


def test_nothing_at_the_address_is_an_environment_problem_that_names_it(tmp_path):
    with socket.create_server((HOST, 0)) as closed:
        address = f"{HOST}:{closed.getsockname()[1]}"
    file = TokenFile(address=address, fingerprint="0" * 64, token="t", run="run")
    error, lines = asyncio.run(refused(tmp_path, file))
    assert error.exit_code == EnvironmentProblem.exit_code
    assert address in str(error)
    assert any("joining the run run" in line for line in lines)


def test_controller_that_does_not_answer_is_given_up_in_a_sentence_that_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(joining, "DIAL_S", 0.05)
    # The system accepts connections, and nothing ever replies: a firewall, or another service.
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        file = TokenFile(address=address, fingerprint="0" * 64, token="t", run="run")
        error, _ = asyncio.run(refused(tmp_path, file))
    assert error.exit_code == EnvironmentProblem.exit_code
    assert f"no run can be reached at {address} (no reply); check the address, the firewall" in str(error)


def test_run_that_ends_while_a_machine_joins_is_resumable(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            run.pool._is_stopping = True
            error, _ = await refused(tmp_path, token_file_of(tmp_path))
            assert error.exit_code == Stopped.exit_code

    asyncio.run(story())


def test_machine_waits_for_a_name_that_is_free_soon(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(joining, "PAUSE_S", 0.01)
        async with listening(tmp_path) as run:
            earlier = await run.joined("box")
            lines: list[str] = []

            def show(line: str) -> None:
                lines.append(line)
                if line.startswith("trying"):
                    run.pool._ended(earlier.agent.token, left=True)

            options = JoinOptions(token_file=token_file_of(tmp_path), name="box", folder=tmp_path / "joined")
            joined = await JoiningMachine(options, show)._joined()
            assert joined is not None
            assert joined.node == "box.2"
            assert len([line for line in lines if "a node named box already" in line]) == 1

    asyncio.run(story())


def test_machine_whose_gpus_do_not_suffice_gives_its_name_back_at_once(tmp_path, monkeypatch):
    def too_few(*spec: object) -> NoReturn:
        raise EnvironmentProblem("the node has 8 slots but torch finds 4 CUDA devices; join with fewer --slots.")

    async def story():
        monkeypatch.setattr(joining, "own_devices", too_few)
        async with listening(tmp_path) as run:
            error, _ = await refused(tmp_path, token_file_of(tmp_path), slots=8)
            assert "fewer --slots" in str(error)
            assert run.pool.nodes() == (), "the name stays taken until the agent has had its time to connect"

    asyncio.run(story())


def test_template_gets_the_paths_of_the_machine_that_runs_it(tmp_path):
    async def story() -> AgentLaunch:
        async with listening(tmp_path) as run:
            return (await run.joined()).agent

    received = asyncio.run(story())
    assert (received.nursery, received.store, received.logs, received.devices) == ("", "", "", ())
    settings = msgspec.json.encode({"run_folder": received.home, "model": {"name": f"{received.home}/base"}, "x": 1})
    moved = msgspec.structs.replace(received, settings=settings).at_home("/mirror")
    assert moved.home == "/mirror"
    assert json.loads(moved.settings) == {"run_folder": "/mirror", "model": {"name": "/mirror/base"}, "x": 1}


def test_launch_of_a_machine_survives_its_way_over_the_wire(tmp_path):
    async def story() -> MachineLaunch:
        async with listening(tmp_path) as run:
            return await run.joined()

    launch = asyncio.run(story())
    assert MachineLaunch.from_bytes(launch.to_bytes()) == launch
    assert launch.model == MODEL, "a machine that joins cannot read the weights ahead"


def test_machine_that_joins_reads_the_model_of_the_run_ahead(tmp_path, monkeypatch):
    started: list[MachineSettings] = []

    class Started:
        def __init__(self, settings, ended):
            started.append(settings)

        async def start(self):
            pass

        async def ensure_nursery(self):
            pass

    async def story():
        monkeypatch.setattr(joining, "Machine", Started)
        async with listening(tmp_path) as run:
            options = JoinOptions(token_file=token_file_of(tmp_path), name="box", folder=tmp_path / "joined")
            await JoiningMachine(options, lambda line: None)._started(await run.joined())

    asyncio.run(story())
    assert [settings.model for settings in started] == [MODEL]


@pytest.mark.parametrize(
    ("host", "name"), [("Node-7.cluster.local", "node-7-cluster-local"), ("___", "machine"), ("a" * 60, "a" * 40)]
)
def test_default_name_is_a_valid_name_of_a_node(monkeypatch, host, name):
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    assert default_name() == name


# -- files and commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [(b"{}", 0o600, "not a token file"), (b"{}", 0o644, "644"), (None, 0, "cannot be read"), (b"\xff", 0o600, "not a")],
)
def test_token_file_that_cannot_be_used_is_one_sentence(tmp_path, content, mode, words):
    path = tmp_path / "t.json"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    outcome = spotlight("join", "127.0.0.1:1", "--token-file", path)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_token_command_writes_a_private_file_and_does_not_print_the_token(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    RunSecrets(tmp_path).listens_at("10.0.0.1:7700")
    out = tmp_path / "out.json"
    outcome = spotlight("token", tmp_path, "--out", out)
    assert outcome.code == 0, outcome.err
    written = TokenFile.read(out)
    assert written == token_file_of(tmp_path)
    assert out.stat().st_mode & 0o777 == 0o600
    assert "spotlight join 10.0.0.1:7700 --token-file out.json" in outcome.out
    assert written.token not in outcome.out + outcome.err


def test_token_of_a_run_that_does_not_listen_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    outcome = spotlight("token", tmp_path)
    assert outcome.code == 2
    assert "cluster.listen" in outcome.err


def test_new_token_needs_a_live_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    RunSecrets(tmp_path).listens_at("10.0.0.1:7700")
    before = token_file_of(tmp_path).token
    outcome = spotlight("token", tmp_path, "--new", "--out", tmp_path / "out.json")
    assert outcome.code == 2
    assert "not running" in outcome.err
    assert token_file_of(tmp_path).token == before


def test_secrets_of_a_resumed_run_are_those_of_its_start_and_of_a_new_run_others(tmp_path):
    first = RunSecrets(tmp_path)
    first.listens_at("10.0.0.1:7700")
    again = RunSecrets(tmp_path)
    assert again.identity.fingerprint == first.identity.fingerprint
    assert again.matches(token_file_of(tmp_path).token)
    RunSecrets.forget(tmp_path)
    assert not state_folder(tmp_path).exists()
    assert RunSecrets(tmp_path).identity.fingerprint != first.identity.fingerprint
