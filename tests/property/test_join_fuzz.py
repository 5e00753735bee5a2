"""Thousands of damaged, forged and replayed frames over TLS: the controller goes on, unchanged and no larger.

    pytest -n 0 -s -m slow tests/property/test_join_fuzz.py       # 100,000 frames of a node, 20,000 of strangers

With `-s` each test prints what it has sent, and the growth of the controller.
"""

import asyncio
import gc
import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from join_stories import FLIGHT, HOST, LENIENT, PATIENCE_S, PAYLOAD, ListeningRun, Party, forged, listening

from spotlight import __version__
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.events import SCHEMA
from spotlight.core.tls import open_pinned
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass

COUNTS = [500, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
GROWTH_LIMIT = 1 << 20
"""Bytes that the controller may keep after half of the frames, beyond what it kept before."""
ODD: list[Any] = [
    None, True, -1, 0, 1, 1 << 31, (1 << 63) - 1, -(1 << 63), 1e308, float("nan"), float("inf"), -0.5, "", "x" * 5000,
    "../../etc/passwd", "\x00\u202e", "evil.1/0.1", "honest.1/0.1", "honest.1", b"\x00" * 100, [], [[]], {}, {"": None},
    ["Pull"], "rollout/0/0/0", "payloads/../x",
]  # fmt: skip


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy of decoded msgpack with one part replaced, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        match chance.randrange(8):
            case 0:
                return {other: kept for other, kept in value.items() if other != key}
            case 1:
                return value | {"extra": chance.choice(ODD)}
            case _:
                return value | {key: mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [mutated(each, chance) if number == place else each for number, each in enumerate(value)]
    return chance.choice(ODD)


def messages(party: Party) -> list[m.AnyMessage]:
    """One of every kind that agents, workers, controllers and machines send."""
    request, other = party.requests[:2]
    stolen = msgspec.structs.replace(FLIGHT, path="flights/honest.1-0")
    hello = m.Hello(schema=SCHEMA, code=__version__, node=party.node, slot_class=SlotClass.SPOT, rows=4, pid=1)
    return [
        *forged(request),
        # Flights and samples of other nodes.
        m.Commit(request=request.id, attempt=1, step=2, flight=stolen),
        m.Result(request=other.id, attempt=1, digest="weights", steps=6, payload=PAYLOAD),
        hello,
        m.Pull(free_rows=4, row_steps_per_s=2.0, saturating_rows=2, answered=0),
        m.Held(weights=request.weights, digest="other"),
        m.Alive(progress=(m.Progress(request.id, 1, 3),), spans=(m.Span("rollout", 2.0, 1.0),), gain=1.0),
        m.Gone(worker=party.honest, cause="forged"),
        m.Warned(kind="imminent", seconds=5.0),
        m.RewardAwaited(reward="ocr", pictures=0),
        m.Noted(problem="a note"),
        m.Stepped(step=1, digest="d", figures={"loss": 1.0}),
        m.Saved(step=1, path="x"),
        m.Drain(),
        m.Ping(),
        m.NodeHello(schema=SCHEMA, code=__version__, node=party.node, slot_class=SlotClass.SPOT, slots=1),
        m.Grant(leases=()),
        joins.Join(
            schema=SCHEMA, code=__version__, source="s", token="t", name="box", slot_class=SlotClass.SPOT
        ),
        joins.Leave(reason="forged"),
    ]  # fmt: skip


def frame(content: bytes, number: int, received: int, blob: bytes = b"") -> bytes:
    return wire._HEADER.pack(wire.MAGIC, SCHEMA, len(content), len(blob), number, received) + content + blob


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Bytes that are not this frame: cut, flipped, of a wrong length, or of another program."""
    match chance.randrange(5):
        case 0:
            return whole[: chance.randrange(1, len(whole))]
        case 1:
            place = chance.randrange(len(whole))
            return whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :]
        case 2:
            return wire._HEADER.pack(wire.MAGIC, SCHEMA, chance.getrandbits(32), chance.getrandbits(64), 1, 0) + whole
        case 3:
            return chance.randbytes(chance.randrange(1, 400))
        case _:
            return b"GET / HTTP/1.1\r\n\r\n"


class Intruder:
    """The other end of a node's link, which sends what it likes; it joins again whenever it is sent away."""

    def __init__(self, run: ListeningRun, party: Party) -> None:
        self._run = run
        self._party = party
        self._hello: m.NodeHello | None = None
        self._sent = 0
        self._received = 0
        self._counting: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, content: bytes, is_whole: bool, chance: random.Random) -> None:
        """Send a frame and wait until the controller has read it, or has closed the connection."""
        if self._writer is None or self._counting is None or self._counting.done():
            await self._connect()
        assert self._writer is not None
        number = self._sent + 1 if chance.random() < 0.9 else chance.choice([0, 1, self._sent, self._sent + 2, 1 << 63])
        whole = frame(content, number, self._received, blob=b"b" if chance.random() < 0.02 else b"")
        self._writer.write(whole if is_whole else damaged(whole, chance))
        with suppress(ConnectionError):
            await self._writer.drain()
        if is_whole:
            await self._until_read(number)
        else:
            await self.close()

    async def _until_read(self, number: int) -> None:
        assert self._counting is not None
        guest = self._run.door._guests.get(self._party.node)
        async with asyncio.timeout(PATIENCE_S):
            while guest is not None and not self._counting.done() and number > guest.stream.link.received:
                await asyncio.sleep(0)
        self._sent = guest.stream.link.received if guest is not None else 0

    async def _connect(self) -> None:
        """Resume the link, until the controller has seen the end of the last connection."""
        await self.close()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self._party.node not in self._run.pool.nodes():
                    await self._join()
                assert self._hello is not None
                reader, writer = await open_pinned(HOST, self._run.port, self._run.secrets.identity.fingerprint)
                is_known = self._hello.node in self._run.door._guests
                hello = msgspec.structs.replace(self._hello, received=self._received if is_known else None)
                wire.write(writer, m.Envelope(None, hello))
                reply = await wire.read(reader)
                if reply is not None and isinstance(reply[0].message, m.Welcome):
                    break
                writer.close()
        self._sent = reply[0].message.received
        self._writer = writer
        self._counting = asyncio.create_task(self._count(reader))

    async def _join(self) -> None:
        launch = await self._run.joined("evil")
        self._party.node, self._party.own = launch.agent.node, WorkerId(f"{launch.agent.node}/0.1")
        self._hello = launch.agent.node_settings("").hello()
        self._received = 0

    async def _count(self, reader: asyncio.StreamReader) -> None:
        while (arrived := await wire.read_numbered(reader)) is not None:
            self._received = max(self._received, arrived.number)

    async def close(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def contents(party: Party, chance: random.Random) -> Iterator[bytes]:
    """Encoded messages: correct ones in wrong names, and mutated ones."""
    node = None
    while True:
        if node != party.node:
            node, corpus = party.node, messages(party)
            names = [
                *(4 * [party.own]),
                party.honest,
                WorkerId(f"{node}/7.1"),
                WorkerId(f"{node}/../x"),
                WorkerId(""),
                None,
            ]
        content = wire.encode(m.Envelope(chance.choice(names), chance.choice(corpus)))
        if chance.random() < 0.6:
            content = msgspec.msgpack.encode(mutated(msgspec.msgpack.decode(content), chance))
        yield content


def growth(kept: list[int]) -> int:
    """Bytes that the second half of the frames has left."""
    return kept[1] - kept[0]


def kept_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("count", COUNTS)
def test_node_with_a_token_cannot_break_change_or_fill_the_controller(tmp_path, count):
    counted: Counter[str] = Counter()

    async def story():
        chance = random.Random(count)
        async with listening(tmp_path, LENIENT) as run:
            party = Party(run)
            party.node, party.own = NodeId(""), WorkerId("")
            before = party.state()
            intruder, source = Intruder(run, party), contents(party, chance)
            kept = []
            for half in range(2):
                for _ in range(count // 2):
                    is_whole = chance.random() < 0.85
                    counted["whole" if is_whole else "damaged"] += 1
                    await intruder.send(next(source), is_whole, chance)
                # The journal is a file in a run; here the test itself keeps its records.
                run.events.clear()
                kept.append(kept_bytes())
                assert party.state() == before, half
            await intruder.close()
            lives = run.pool._counts.next("evil") - 1
            sys.stdout.write(f"\na node: {dict(counted)} frames in {lives} lives, grown by {growth(kept)} bytes\n")
            assert growth(kept) < GROWTH_LIMIT
            assert isinstance(await run.dialled(run.join(name="next")), joins.Joined)

    tracemalloc.start()
    try:
        asyncio.run(story())
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [100, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_strangers_cannot_break_change_or_fill_the_controller(tmp_path, count):
    async def story():
        chance = random.Random(count)
        async with listening(tmp_path, LENIENT) as run:
            party = Party(run)
            party.node, party.own = NodeId("evil.1"), WorkerId("evil.1/0.1")
            before, source = party.state(), contents(party, chance)
            kept = []
            for _ in range(2):
                for _ in range(count // 2):
                    whole = frame(next(source), 0, 0)
                    _, writer = await open_pinned(HOST, run.port, run.secrets.identity.fingerprint)
                    writer.write(whole if chance.random() < 0.5 else damaged(whole, chance))
                    writer.close()
                await run.eventually(lambda: run.gate._strangers.total() == 0)
                kept.append(kept_bytes())
            assert party.state() == before
            assert run.pool.nodes() == ()
            assert len(run.problems()) == 1, "one record per address"
            sys.stdout.write(f"\nstrangers: {count} connections, grown by {growth(kept)} bytes\n")
            assert growth(kept) < GROWTH_LIMIT

    tracemalloc.start()
    try:
        asyncio.run(story())
    finally:
        tracemalloc.stop()
