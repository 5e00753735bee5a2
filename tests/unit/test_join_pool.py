"""Machines that bring themselves: names, incarnations, orders and ends."""

import asyncio
from dataclasses import replace
from math import inf, nan

import msgspec
import pytest
from join_stories import ListeningRun, listening

from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core.events import NodeJoined, NodeLost
from spotlight.core.node_spec import NodeStanding, NodeState
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, SlotClass
from spotlight.node.controller_link import ControllerLink, NodeRefused
from spotlight.pools.devices import Device, DeviceTable
from spotlight.pools.pool import Departure, NodeDown, NodeUp, PoolEvent
from spotlight.surface.panel import machine_lines


def told(story):
    asyncio.run(story)


async def connected(run: ListeningRun, name: str = "box") -> tuple[NodeId, ControllerLink, list[m.AnyMessage]]:
    """A node that has joined, and what its agent receives."""
    launch = await run.joined(name)
    link, got = run.link(launch), []
    await link.connect()

    async def read() -> None:
        async for envelope, _ in link.frames():
            got.append(envelope.message)

    link.reading = asyncio.create_task(read())  # type: ignore[attr-defined]
    return launch.agent.node, link, got


def pool_events(run: ListeningRun) -> list[PoolEvent | None]:
    return list(run.pool._events._queue)  # type: ignore[attr-defined]


def test_machine_becomes_the_node_that_it_asks_for(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            launch = await run.joined("box", slots=2, zone="a", slot_class=SlotClass.RESERVED)
            spec = launch.agent.spec
            assert (launch.agent.node, spec.slots, spec.zone, spec.slot_class, spec.trains) == (
                "box.1", 2, "a", SlotClass.RESERVED, 0,
            )  # fmt: skip
            assert launch.agent.controller == run.address
            assert run.pool.nodes() == ("box.1",)
            assert pool_events(run) == [NodeUp(node=launch.agent.node, spec=spec)]

    told(story())


def test_agent_of_a_joined_machine_is_billed_as_granted_and_not_as_it_claims(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            launch = await run.joined()
            await run.link(launch, price="free", slots=99, slot_class=SlotClass.RESERVED, zone="moon").connect()
            (event,) = [event for event in run.events if isinstance(event, NodeJoined)]
            spec = launch.agent.spec
            assert (event.price, event.slots, event.slot_class, event.zone) == (spec.price, 1, SlotClass.SPOT, "")

    told(story())


@pytest.mark.parametrize(("claimed", "age_s"), [(7200.0, 7200.0), (nan, 0.0), (-1.0, 0.0), (inf, 1e9)])
def test_age_of_a_joined_machine_is_recorded_within_reason(tmp_path, claimed, age_s):
    async def story():
        async with listening(tmp_path) as run:
            await run.link(await run.joined(), age_s=claimed).connect()
            assert [event.age_s for event in run.events if isinstance(event, NodeJoined)] == [age_s]

    told(story())


@pytest.mark.parametrize("name", ["box", "reserved-1", "spot-1"])
def test_name_of_another_node_is_refused_for_now(tmp_path, name):
    async def story():
        async with listening(tmp_path) as run:
            await run.joined("box")
            reply = await run.dialled(run.join(name=name))
            assert isinstance(reply, joins.JoinRefused)
            assert (reply.wait_s > 0, name in reply.reason) == (True, True)
            assert run.problems() == []

    told(story())


@pytest.mark.parametrize("name", ["", "Box", "a/b", "a.b", "../x", "-a", "a" * 41, "a\nb"])
def test_name_that_would_break_ids_or_paths_is_refused(tmp_path, name):
    async def story():
        async with listening(tmp_path) as run:
            reply = await run.dialled(run.join(name=name))
            assert isinstance(reply, joins.JoinRefused)
            assert run.pool.nodes() == ()

    told(story())


@pytest.mark.parametrize("claim", [{"zone": "\x1b]0;a\x07"}, {"gpus": ("\x1b[2J",)}, {"gpus": ("a" * 65,)}])
def test_zone_or_gpu_that_would_control_the_terminal_of_the_run_is_refused(tmp_path, claim):
    async def story():
        async with listening(tmp_path) as run:
            await on_gpus(run)
            reply = await run.dialled(run.join(**({"gpus": ("NVIDIA H200",)} | claim)))
            assert isinstance(reply, joins.JoinRefused)
            assert "printable" in reply.reason
            assert run.pool.nodes() == ()

    told(story())


def test_machine_with_other_source_files_is_refused_with_both_digests(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            reply = await run.dialled(run.join(source="0" * 32))
            assert isinstance(reply, joins.JoinRefused)
            assert reply.exit_code == 3
            assert "0" * 32 in reply.reason
            assert run.join().source in reply.reason

    told(story())


def test_machine_whose_node_has_ended_is_its_next_incarnation(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            node, link, _ = await connected(run)
            before = run.pool._members["box"].token
            link.reading.cancel()
            launch = await run.joined("box", previous=before)
            assert (node, launch.agent.node) == ("box.1", "box.2")
            assert launch.agent.token != before
            assert run.pool.nodes() == ("box.2",)

    told(story())


def test_end_of_another_machines_node_cannot_be_reported(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            await run.joined("box")
            reply = await run.dialled(run.join(name="box", previous="guess", leaves=True))
            assert reply is None
            assert run.pool.nodes() == ("box.1",)

    told(story())


def test_machine_that_leaves_is_reported_even_after_its_token_was_revoked(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            launch, old = await run.joined("box"), run.token
            run.secrets.renew()
            await run.dialled(run.join(token=old, previous=launch.agent.token, leaves=True))
            assert run.pool.nodes() == ()
            down = pool_events(run)[-1]
            assert isinstance(down, NodeDown)
            assert down.departure is Departure.LEFT
            assert run.problems() == []

    told(story())


def test_node_whose_link_is_lost_frees_its_name(tmp_path):
    async def story():
        async with listening(tmp_path, grace_s=0.2) as run:
            _, link, _ = await connected(run)
            link.reading.cancel()
            await link.close()
            await run.eventually(lambda: run.pool.nodes() == ())
            assert [event for event in run.events if isinstance(event, NodeLost)] != []
            assert (await run.joined("box")).agent.node == "box.2"

    told(story())


def test_machine_whose_agent_never_connects_loses_its_name(tmp_path, monkeypatch):
    async def story():
        async with listening(tmp_path) as run:
            await run.joined("box")
            monkeypatch.setattr("spotlight.pools.join_pool.CONNECT_S", -1.0)
            assert (await run.joined("box")).agent.node == "box.2"

    told(story())


def test_orders_reach_the_agent_over_its_link(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            node, _, got = await connected(run)
            await run.pool.warn(node, NoticeKind.IMMINENT, 30.0)
            await run.pool.kill_worker(WorkerId(f"{node}/0.1"))
            await run.eventually(lambda: len(got) == 2)
            assert got == [
                joins.NoticeOrder(kind=NoticeKind.IMMINENT, seconds=30.0),
                joins.KillOrder(worker=WorkerId(f"{node}/0.1")),
            ]

    told(story())


def test_drained_node_that_leaves_in_time_is_not_killed(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            node, _, got = await connected(run)
            token = run.pool._members["box"].token
            draining = asyncio.create_task(run.pool.drain_node(node))
            await run.eventually(lambda: got == [m.Drain()])
            await run.dialled(run.join(previous=token, leaves=True))
            await draining
            assert got == [m.Drain()]
            assert run.pool.nodes() == ()

    told(story())


def test_killed_node_that_does_not_answer_counts_as_gone(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr("spotlight.pools.join_pool.REAP_S", 0.05)
        async with listening(tmp_path) as run:
            node, _, got = await connected(run)
            await run.pool.kill_node(node)
            assert run.pool.nodes() == ()
            assert isinstance(got[0], joins.Leave)
            with pytest.raises(NodeRefused):
                await run.link(await run.joined("other"), node=node).connect()

    told(story())


def test_run_that_ends_sends_its_machines_away_with_the_reason(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr("spotlight.pools.join_pool.FAREWELL_S", 0.05)
        async with listening(tmp_path) as run:
            _, _, got = await connected(run)
            run.pool.farewell = lambda: run.pool.FINISHED
            await run.pool.stop()
            await run.eventually(lambda: got == [run.pool.FINISHED])
            reply = await run.dialled(run.join(name="late"))
            assert isinstance(reply, joins.JoinRefused)
            assert reply.exit_code == 4

    told(story())


def test_machine_that_was_reported_gone_leaves_with_that_cause_and_does_not_return_in_its_successors_place(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            launch = await run.joined()
            await run.link(launch).connect()
            assert run.pool.connected("box") == launch.agent.node
            run.pool.ended("box", "preempted: its node was drained")
            assert [event.cause for event in run.events if isinstance(event, NodeLost)] == [
                "preempted: its node was drained"
            ]
            assert run.pool.connected("box") is None
            orphan = await run.dialled(run.join(previous=launch.agent.token))
            assert isinstance(orphan, joins.JoinRefused)
            assert not orphan.wait_s
            successor = await run.joined("box")
            assert successor.agent.node == "box.2"

    told(story())


async def on_gpus(run: ListeningRun, **settings: object) -> None:
    """Let the run compute on a GPU."""
    own = DeviceTable(devices={"cuda:0": Device(name="cuda:0", model="NVIDIA H200", free=1, total=1)})
    plain = {"device": "cuda", "pool": replace(run.pool._settings.pool, devices=own)}
    run.pool._settings = replace(run.pool._settings, **(plain | settings))


def test_machine_has_a_slot_per_gpu_in_a_run_on_gpus_and_as_many_as_it_asks_for(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            eight = ("NVIDIA H200",) * 8
            assert (await run.joined("on-cpus", gpus=eight)).agent.spec.slots == 1
            await on_gpus(run)
            assert (await run.joined("all", gpus=eight)).agent.spec.slots == 8
            assert (await run.joined("some", gpus=eight, slots=3)).agent.spec.slots == 3
            await on_gpus(run, device="cuda:1")
            assert (await run.joined("one", gpus=eight)).agent.spec.slots == 1

    told(story())


def test_machine_without_a_gpu_is_refused_by_a_run_on_gpus_unless_it_is_paced(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            await on_gpus(run)
            reply = await run.dialled(run.join())
            assert isinstance(reply, joins.JoinRefused)
            assert (reply.exit_code, "torch finds none on this machine" in reply.reason) == (3, True)
            paced = run.pool._settings.cluster.model_copy(update={"pace": "cpu-words"})
            await on_gpus(run, pool=replace(run.pool._settings.pool, cluster=paced))
            assert (await run.joined()).device == "cpu"

    told(story())


@pytest.mark.parametrize("deterministic", [False, True])
def test_machine_with_another_gpu_gets_one_sentence_and_is_refused_where_bits_must_be_the_same(tmp_path, deterministic):
    async def story():
        async with listening(tmp_path) as run:
            said: list[str] = []
            run.pool.announce = said.append
            await on_gpus(run, deterministic=deterministic)
            assert isinstance(await run.dialled(run.join(name="same", gpus=("NVIDIA H200",))), joins.Joined)
            reply = await run.dialled(run.join(gpus=("NVIDIA A100", "NVIDIA H200")))
            if deterministic:
                assert isinstance(reply, joins.JoinRefused)
                assert reply.exit_code == 3
                assert "has NVIDIA A100, but the run's GPUs are NVIDIA H200 and deterministic is on" in reply.reason
            else:
                assert isinstance(reply, joins.Joined)
                assert said[-1] == (
                    "box.1 has NVIDIA A100, where the run has NVIDIA H200: work is shared by measured speed"
                )

    told(story())


def test_machine_of_a_network_with_many_addresses_is_named_by_its_own(tmp_path, monkeypatch):
    """Its attempts are counted by the network."""

    async def story():
        loop = asyncio.get_running_loop()
        accepted = loop.sock_accept

        async def accepted_from_afar(listening):
            connection, _ = await accepted(listening)
            return connection, ("2001:db8:1:2::5", 1, 0, 0)

        monkeypatch.setattr(loop, "sock_accept", accepted_from_afar)
        async with listening(tmp_path) as run:
            launch = await run.joined("box")
            assert [each.place for each in run.door.standings()] == ["2001:db8:1:2::5"]
            link = run.link(launch)
            await link.connect()
            assert [each.place for each in run.door.standings()] == ["2001:db8:1:2::5"]
            await link.close()
            await run.dialled(run.join(token="none"))
            assert "a machine at 2001:db8:1:2::/64 was refused" in "".join(run.problems())

    told(story())


def test_machines_are_named_with_their_place_and_their_state_until_they_are_gone(tmp_path):
    async def story():
        def shown() -> list[tuple[str, str, str]]:
            return [(each.node, each.place, each.state) for each in run.door.standings()]

        async with listening(tmp_path, grace_s=0.5) as run:
            launch = await run.joined("box", slots=2, zone="a")
            assert shown() == [("box.1", "127.0.0.1", "joining")]
            link = run.link(launch)
            await link.connect()
            await run.eventually(lambda: shown() == [("box.1", "127.0.0.1", "connected")])
            lines = machine_lines(list(run.door.standings())).plain
            assert lines == "box.1  2 spot slots  at 127.0.0.1, zone a: connected"
            await link.close()
            await run.eventually(lambda: shown() == [("box.1", "127.0.0.1", "away")])
            await run.eventually(lambda: shown() == [])

    told(story())


def test_states_of_many_machines_are_counted():
    one = NodeStanding(
        node=NodeId("box.1"), place="10.0.0.7", slot_class=SlotClass.SPOT, slots=1, zone="", state=NodeState.CONNECTED
    )
    away = msgspec.structs.replace(one, state=NodeState.AWAY)
    assert machine_lines([one] * 1200 + [away] * 2).plain == "2 away, 1,200 connected"
