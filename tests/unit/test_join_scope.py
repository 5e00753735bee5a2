"""What a node on another machine may do: act for its own workers, and nothing else."""

import asyncio

import msgspec
import pytest
from join_stories import FLIGHT, PAYLOAD, Party, forged, hello_of, listening

from spotlight.control.ledger import SampleState
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind
from spotlight.core.events import NodeLost, WorkerJoined
from spotlight.core.types import NodeId, WorkerId


def told(story):
    asyncio.run(story)


@pytest.mark.parametrize("name", ["its own worker", "the honest worker", "no worker"])
@pytest.mark.parametrize("number", range(7))
def test_lease_of_another_worker_cannot_be_touched(tmp_path, name, number):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            await party.connect()
            before = party.state()
            worker = {"its own worker": party.own, "the honest worker": party.honest, "no worker": None}[name]
            await party.sent(forged(party.requests[0])[number], worker)
            assert party.state() == before

    told(story())


def test_honest_worker_still_finishes_what_was_attacked(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            await party.connect()
            for message in forged(party.requests[0]):
                await party.sent(message, party.own)
            result = m.Result(
                request=party.requests[0].id,
                attempt=1,
                digest="weights",
                steps=6,
                score=m.Score(reward=0.5),
                payload=PAYLOAD,
            )
            run.hub.receive(NodeId("honest.1"), m.Envelope(party.honest, result))
            assert run.hub.dispatcher.ledger.state(party.requests[0].id) is SampleState.ACCEPTED

    told(story())


def test_lease_that_was_handed_back_cannot_be_replayed(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            await party.connect()
            request = party.requests[0]
            # The honest worker hands it back; the other one has it for a while, and hands it back too.
            back = m.HandBack(request=request.id, attempt=1, step=0)
            run.hub.receive(NodeId("honest.1"), m.Envelope(party.honest, back))
            await party.sent(m.Held(weights=request.weights, digest="weights"), party.own)
            await party.sent(m.Pull(free_rows=4), party.own)
            await run.eventually(lambda: party.holder(request.id) == party.own)
            own = m.HandBack(request=request.id, attempt=2, step=0)
            await party.sent(own, party.own)
            run.hub.receive(NodeId("honest.1"), m.Envelope(party.honest, m.Pull(free_rows=4)))
            await run.eventually(lambda: party.holder(request.id) == party.honest)
            before = party.state()
            for attempt in (1, 2, 3):
                for message in (*forged(request), own):
                    await party.sent(
                        msgspec.structs.replace(message, attempt=attempt) if hasattr(message, "attempt") else message,
                        party.own,
                    )
            assert party.state() == before

    told(story())


NOT_OURS = [
    m.Stepped(step=1, digest="d", figures={}),
    m.Saved(step=1, path="/etc"),
    m.Accumulated(step=1, part=0),
    m.Drain(),
    m.Rejected(reason="no"),
    m.Noted(problem="x" * (1 << 17)),
    m.Pull(free_rows=-1),
    *(m.Pull(free_rows=4, row_steps_per_s=speed) for speed in (float("nan"), float("inf"), 1e308, 1e-308, 0.0)),
    m.Alive(spans=(m.Span("rollout", float("inf"), 0.0),)),
    m.Commit(request="r", attempt=1, step=1, flight=msgspec.structs.replace(FLIGHT, path="flights/../../etc/passwd")),
    m.Commit(request="r", attempt=1, step=1, flight=msgspec.structs.replace(FLIGHT, path="/etc/passwd")),
    m.Commit(request="r", attempt=1, step=1, flight=msgspec.structs.replace(FLIGHT, path="flights/honest.1-0")),
    m.Commit(request="r", attempt=1, step=1, flight=msgspec.structs.replace(FLIGHT, kind=BlobKind.PAYLOAD)),
    m.Result(request="r", attempt=1, digest="w", steps=6, score=m.Score(reward=-1e308)),
    m.Result(request="r", attempt=1, digest="w", steps=6, score=m.Score(reward=0.5, components={"ocr": 1e308})),
    *(m.Result(request=name, attempt=1, digest="w", steps=6, payload=PAYLOAD) for name in ("rollout/0/0/1", "r", "")),
]


@pytest.mark.parametrize("message", NOT_OURS, ids=lambda message: type(message).__name__)
def test_message_that_no_joined_node_sends_is_dropped_and_noted(tmp_path, message):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            await party.connect()
            before = party.state()
            await party.sent(message, party.own)
            assert party.state() == before
            assert "dropped" in run.problems()[-1]

    told(story())


def test_worker_beyond_the_slots_or_with_a_training_role_is_not_introduced(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            node = await party.connect()
            joined = [event for event in run.events if isinstance(event, WorkerJoined)]
            _, hello = hello_of(node)
            await party.sent(hello, WorkerId(f"{node}/0.2"))
            await party.sent(hello, WorkerId(f"{node}/1.1"))
            await party.sent(msgspec.structs.replace(hello, trains=True), party.own)
            await party.sent(msgspec.structs.replace(hello, node=NodeId("honest.1")), party.own)
            assert [event for event in run.events if isinstance(event, WorkerJoined)] == joined

    told(story())


@pytest.mark.parametrize(
    ("message", "times"),
    [(m.StoreFailed(problem="its disk is full"), 1), (m.Failed(problem="its disk is full", exit_code=3), 3)],
)
@pytest.mark.parametrize("of_worker", [False, True])
def test_machine_that_cannot_work_is_sent_away_and_the_run_goes_on(tmp_path, message, times, of_worker):
    async def story():
        async with listening(tmp_path) as run:
            party = Party(run)
            node = await party.connect()
            for _ in range(times):
                await party.sent(message, party.own if of_worker and isinstance(message, m.Failed) else None)
            await run.eventually(lambda: run.pool.nodes() == ())
            assert "its disk is full" in run.problems()
            assert [event.node for event in run.events if isinstance(event, NodeLost)] == [node]
            assert (run.hub._failure, run.hub.dispatcher.failure) == (None, None)
            assert run.hub.dispatcher.to_gang == []

    told(story())


def test_machine_with_other_kernels_is_sent_away_with_the_reason(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            Party(run)
            launch = await run.joined("box")
            link, got = run.link(launch), []
            await link.connect()
            worker, hello = hello_of(launch.agent.node)
            link.send(msgspec.structs.replace(hello, kernels="flash"), worker)

            async def read():
                async for envelope, _ in link.frames():
                    got.append(envelope.message)

            reading = asyncio.create_task(read())
            await run.eventually(lambda: any(isinstance(message, joins.Leave) for message in got))
            (leave,) = [message for message in got if isinstance(message, joins.Leave)]
            assert leave.exit_code == 3
            assert "kernels" in leave.reason
            assert run.hub.dispatcher.failure is None
            reading.cancel()

    told(story())


def test_worker_of_another_machine_waits_until_the_runs_own_workers_have_set_the_kernels(tmp_path):
    async def story():
        async with listening(tmp_path) as run:
            run.hub.dispatcher.directory.kernels = None
            launch = await run.joined("box")
            link = run.link(launch)
            await link.connect()
            worker, hello = hello_of(launch.agent.node)
            link.send(msgspec.structs.replace(hello, kernels="flash"), worker)
            stream = run.door._guests[launch.agent.node].stream
            await run.eventually(lambda: stream.link.received == 1)
            assert worker not in run.hub.dispatcher.directory.workers
            party = Party(run)
            assert party.honest in run.hub.dispatcher.directory.workers, "the run's own kernels count"
            link.send(m.Alive(), worker)
            await run.eventually(lambda: run.pool.nodes() == ())
            assert "kernels" in run.problems()[-1]

    told(story())
