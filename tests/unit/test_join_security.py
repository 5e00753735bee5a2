"""Machines without the right secret change nothing, and machines with it act for their own workers alone."""

import ast
import asyncio
import socket
from pathlib import Path

import pytest
from join_stories import HOST, LENIENT, PATIENCE_S, ListeningRun, listening

import spotlight
from spotlight import __version__
from spotlight.controller.door import HANDSHAKE_LIMITS
from spotlight.controller.gate import GateLimits
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.events import SCHEMA, NodeJoined, ProblemNoted
from spotlight.core.tls import WrongFingerprint, open_pinned
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.node.controller_link import ControllerLink, NodeRefused
from spotlight.pools.config import ClusterConfig
from spotlight.pools.tokens import TOKEN_FILE, state_folder

PACKAGE = Path(spotlight.__file__).parent
PROTOCOL = ("core", "control", "controller", "node", "pools", "orders.py", "presence.py")
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}


def told(story):
    asyncio.run(story)


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["wrong", "missing", "revoked", "of another run", "unicode"])
def test_machine_without_the_runs_token_is_refused_and_recorded_once(tmp_path, kind):
    async def story():
        async with listening(tmp_path / "run") as run, listening(tmp_path / "other") as other:
            tokens = {"wrong": "x" * 43, "missing": "", "of another run": other.token, "unicode": "é" * 43}
            token = tokens.get(kind, run.token)
            if kind == "revoked":
                run.secrets.renew()
            for _ in range(3):
                reply = await run.dialled(run.join(token=token))
                assert isinstance(reply, joins.JoinRefused)
                assert reply.exit_code == 2
            assert run.pool.nodes() == ()
            assert [event for event in run.events if not isinstance(event, ProblemNoted)] == []
            (problem,) = run.problems()
            assert HOST in problem

    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    told(story())


def test_machine_that_pins_another_certificate_sends_nothing(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            asked = []
            run.door.joins = asked.append
            with pytest.raises(WrongFingerprint):
                await run.dialled(run.join(), fingerprint="0" * 64)
            assert asked == []

    told(story())


def test_renewed_token_admits_and_the_earlier_one_does_not(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            old = run.token
            run.secrets.renew()
            assert run.token != old
            assert isinstance(await run.dialled(run.join(token=old)), joins.JoinRefused)
            assert isinstance(await run.dialled(run.join()), joins.Joined)

    told(story())


def test_connected_agent_outlives_a_renewed_token_also_over_a_broken_connection(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            launch = await run.joined()
            link, got = run.link(launch), []
            await link.connect()

            async def read():
                async for envelope, _ in link.frames():
                    got.append(envelope.message)

            reading = asyncio.create_task(read())
            run.secrets.renew()
            stream = run.door._guests[launch.agent.node].stream
            first = stream._writer
            first.transport.abort()
            await run.eventually(lambda: stream._writer not in (None, first))
            link.send(m.Noted(problem="still here"))
            await run.eventually(lambda: "still here" in run.problems())
            reading.cancel()

    told(story())


@pytest.mark.parametrize("whose", ["the local nodes'", "another node's", "the run's", "none"])
def test_agent_over_tls_needs_the_token_of_its_own_node(tmp_path, whose):
    async def story():
        async with listening(tmp_path) as run:
            launch, other = await run.joined("box"), await run.joined("other")
            tokens = {
                "the local nodes'": "local secret",
                "another node's": other.agent.token,
                "the run's": run.token,
                "none": "",
            }
            with pytest.raises(NodeRefused, match="wrong token"):
                await run.link(launch, token=tokens[whose]).connect()
            assert [event for event in run.events if isinstance(event, NodeJoined)] == []

    told(story())


def test_node_of_this_machine_cannot_be_claimed_over_tls(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            hello = m.NodeHello(
                schema=SCHEMA, code=__version__, node=NodeId("reserved-1.1"), slot_class=SlotClass.RESERVED, slots=1,
                token="local secret",
            )  # fmt: skip
            with pytest.raises(NodeRefused):
                await ControllerLink(run.address, hello, 1.0, run.secrets.identity.fingerprint).connect()

    told(story())


# -- connections -------------------------------------------------------------------------------------------------------


async def is_closed_at_once(run: ListeningRun) -> bool:
    reader, writer = await asyncio.open_connection(HOST, run.port)
    try:
        return await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


def test_address_that_fails_too_often_is_not_even_greeted(tmp_path):
    async def story():
        async with listening(tmp_path, GateLimits(failures=3, window_s=1e6)) as run:
            for _ in range(3):
                await run.dialled(run.join(token="wrong"))
            assert await is_closed_at_once(run)
            with pytest.raises((OSError, wire.WireError)):
                await run.dialled(run.join())

    told(story())


def test_silent_strangers_are_limited_and_nodes_stay_connected(tmp_path):
    async def story():
        async with listening(tmp_path, GateLimits(strangers_per_address=2)) as run:
            launch = await run.joined()
            link = run.link(launch)
            await link.connect()
            await run.eventually(lambda: run.gate._strangers.total() == 0)
            silent = [await asyncio.open_connection(HOST, run.port) for _ in range(2)]
            await run.eventually(lambda: run.gate._strangers.total() == 2)
            assert await is_closed_at_once(run)
            link.send(m.Noted(problem="a node"))
            await run.eventually(lambda: "a node" in run.problems())
            for _, writer in silent:
                writer.close()
            await run.eventually(lambda: run.gate._strangers.total() == 0)

    told(story())


def test_machines_that_dial_and_leave_do_not_disturb_other_connections(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            for number in range(20):
                launch = await run.joined(f"box-{number}")
                # The number of a closed socket is used again: nothing may still be registered under it.
                server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), str(tmp_path / "s"))
                await asyncio.sleep(0)
                reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
                assert await asyncio.wait_for(reader.read(1), PATIENCE_S) == b""
                writer.close()
                server.close()
                await run.dialled(run.join(previous=launch.agent.token, leaves=True))

    told(story())


def test_first_frame_above_its_limit_is_refused_before_it_is_read(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            reader, writer = await open_pinned(HOST, run.port, run.secrets.identity.fingerprint)
            writer.write(wire._HEADER.pack(wire.MAGIC, SCHEMA, HANDSHAKE_LIMITS.message + 1, 0, 0, 0))
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()
            assert "limits" in run.problems()[0]

    told(story())


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_no_protocol_module_imports_a_serialiser_that_runs_code():
    found = []
    for place in PROTOCOL:
        path = PACKAGE / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                found += [(file.name, name) for name in names if name.partition(".")[0] in UNSAFE]
    assert found == []


def test_run_listens_for_other_machines_only_if_it_is_asked_to():
    assert ClusterConfig().listen is None


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::"])
def test_port_without_tls_is_of_the_loopback_device_alone(host, tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            with pytest.raises(ValueError, match="loopback"):
                await run.door.listen(host, 0, run.hub)

    told(story())


def test_listening_port_is_bound_to_the_named_address_alone(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            (listener,) = run.door._servers
            assert listener._socket.getsockname()[0] == HOST

    told(story())


def test_secrets_are_readable_by_their_owner_alone_and_outside_of_the_run_folder(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            folder = state_folder(tmp_path)
            assert folder.stat().st_mode & 0o777 == 0o700
            assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
            assert (folder / TOKEN_FILE).exists()
            held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
            assert run.token.encode() not in held

    told(story())


def test_client_that_never_ends_its_handshake_delays_no_other(tmp_path):
    async def story():
        async with listening(tmp_path, LENIENT) as run:
            with socket.create_connection((HOST, run.port)):
                assert isinstance(await run.dialled(run.join()), joins.Joined)

    told(story())
