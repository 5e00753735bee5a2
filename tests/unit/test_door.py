"""The controller's door: strangers are dropped, and a connection may break within the grace without a loss."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dispatch_stories import dispatcher_with

from spotlight import __version__
from spotlight.control.outside import Outgoing
from spotlight.controller.door import Door
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.events import SCHEMA, AnyEvent, NodeJoined, NodeLost, ProblemNoted, Reconnected
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass
from spotlight.node.controller_link import ControllerLink, NodeRefused

NODE = NodeId("spot-7.1")
TOKEN = "secret"
PATIENCE_S = 20.0


class House:
    """A door at a socket, and what its hub has seen."""

    def __init__(self, folder: Path, grace_s: float) -> None:
        self.events: list[AnyEvent] = []
        dispatcher, _ = dispatcher_with(SlotClass.SPOT, emit=self.events.append)
        self.path = folder / "door.sock"
        self.door = Door(TOKEN, grace_s)
        self.hub = Hub(dispatcher, RealClock(), self.door.send)
        self.received: list[m.AnyMessage] = []
        handle = dispatcher.handle

        def recorded(node: NodeId, envelope: m.Envelope, now: float) -> None:
            self.received.append(envelope.message)
            handle(node, envelope, now)

        dispatcher.handle = recorded  # type: ignore[method-assign]

    def link(self, token: str = TOKEN, node: NodeId = NODE, code: str = __version__) -> ControllerLink:
        hello = m.NodeHello(schema=SCHEMA, code=code, node=node, slot_class=SlotClass.SPOT, slots=1, token=token)
        return ControllerLink(str(self.path), hello, grace_s=PATIENCE_S)

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind) and getattr(event, "node", NODE) == NODE]

    def break_connection(self) -> None:
        (guest,) = [guest for node, guest in self.door._guests.items() if node == NODE]
        guest.stream._writer.transport.abort()

    async def eventually(self, condition) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def house(folder: Path, grace_s: float = PATIENCE_S) -> AsyncIterator[House]:
    made = House(folder, grace_s)
    await made.door.open(made.path, made.hub)
    try:
        yield made
    finally:
        await made.door.close()


async def read_into(link: ControllerLink, got: list[m.AnyMessage]) -> None:
    async for envelope, _ in link.frames():
        got.append(envelope.message)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n" * 5, bytes(200), b"SPL" + b"\xff" * 200])
def test_client_that_sends_garbage_is_dropped_and_noted_and_the_next_one_is_served(tmp_path, garbage):
    async def story():
        async with house(tmp_path) as home:
            reader, writer = await asyncio.open_unix_connection(str(home.path))
            writer.write(garbage)
            assert await reader.read() == b""
            writer.close()
            await home.eventually(lambda: [event for event in home.events if isinstance(event, ProblemNoted)])
            link = home.link()
            await link.connect()
            await home.eventually(lambda: home.of(NodeJoined))
            await link.close()

    asyncio.run(story())


@pytest.mark.parametrize(("change", "sentence"), [({"token": "wrong"}, "wrong token"), ({"code": "0.0"}, "same one")])
def test_node_of_another_run_or_version_is_refused(tmp_path, change, sentence):
    async def story():
        async with house(tmp_path) as home:
            with pytest.raises(NodeRefused, match=sentence):
                await home.link(**change).connect()
            assert not home.of(NodeJoined)

    asyncio.run(story())


def test_second_node_of_one_name_is_refused_and_the_first_one_stays(tmp_path):
    async def story():
        async with house(tmp_path) as home:
            first = home.link()
            await first.connect()
            with pytest.raises(NodeRefused, match="a name of its own"):
                await home.link().connect()
            assert not home.of(NodeLost)
            await first.close()

    asyncio.run(story())


def test_messages_of_both_directions_survive_broken_connections_once_and_in_order(tmp_path):
    async def story():
        async with house(tmp_path) as home:
            link, got = home.link(), []
            await link.connect()
            reading = asyncio.create_task(read_into(link, got))
            for number in range(30):
                link.send(m.Noted(problem=f"{number}"))
                home.door.send(Outgoing(NODE, None, m.Recall(requests=(f"{number}",))))
                if number % 7 == 3:
                    home.break_connection()
                await asyncio.sleep(0.01)
            await home.eventually(lambda: len(got) == len(home.received) == 30)
            assert [message.problem for message in home.received] == [f"{number}" for number in range(30)]
            assert [message.requests for message in got] == [(f"{number}",) for number in range(30)]
            assert not home.of(NodeLost)
            assert len(home.of(NodeJoined)) == 1
            assert len(home.of(Reconnected)) == 4, "each break is in the journal"
            reading.cancel()
            await link.close()

    asyncio.run(story())


def test_node_is_lost_after_the_grace_and_refused_when_it_returns(tmp_path):
    async def story():
        async with house(tmp_path, grace_s=0.3) as home:
            link = home.link()
            await link.connect()
            await home.eventually(lambda: home.of(NodeJoined))
            home.break_connection()
            await home.eventually(lambda: home.of(NodeLost))
            got: list[m.AnyMessage] = []
            await asyncio.wait_for(read_into(link, got), PATIENCE_S)
            assert "longer than its grace" in link.end

    asyncio.run(story())


def test_node_whose_processes_have_ended_is_lost_without_waiting_for_the_grace(tmp_path):
    async def story():
        async with house(tmp_path) as home:
            link = home.link()
            await link.connect()
            await home.eventually(lambda: home.of(NodeJoined))
            home.hub.node_ended(NODE)
            assert not home.of(NodeLost), "its last messages may be on the way"
            await link.close()
            await home.eventually(lambda: home.of(NodeLost))

    asyncio.run(story())
