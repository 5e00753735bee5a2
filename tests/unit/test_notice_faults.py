"""Metadata services that fail: whatever they reply, the watch goes on, reports once, and a notice still arrives."""

import pytest
from metadata_server import (
    ACTION,
    EVENTS,
    PREEMPTED,
    TOKEN,
    MetadataServer,
    chunked,
    content,
    hang,
    raw,
    reset,
    slow,
    status,
)
from notice_stories import LIMIT_S, POLL_S, client, is_imminent, listening, story

from spotlight.node.notices import gcp
from spotlight.node.notices.aws import aws_sources
from spotlight.node.notices.azure import azure_sources
from spotlight.node.notices.metadata_http import BODY_MOST, MetadataClient, NoReply, SourceFailed
from spotlight.node.notices.notice import WatchedSource

OK = b"HTTP/1.1 200 OK\r\n"
FAULTS = {
    "unavailable": status(503),
    "too many requests": status(429),
    "redirect": status(302),
    "reset": reset,
    "closed without a reply": raw(b""),
    "not HTTP": raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    "status not a number": raw(b"HTTP/1.1 abc Fine\r\n\r\n"),
    "endless headers": raw(OK + b"X: y\r\n" * 10000),
    "length not a number": raw(OK + b"Content-Length: many\r\n\r\n"),
    "negative length": raw(OK + b"Content-Length: -1\r\n\r\n"),
    "body too short": raw(OK + b"Content-Length: 100\r\n\r\n{"),
    "body too long": raw(OK + b"Content-Length: %d\r\n\r\n" % (BODY_MOST + 1)),
    "bad chunk": raw(OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "empty body": content(b""),
    "not text": content(bytes(range(128, 256))),
    "page of a portal": content(b"<html><body>Please log in</body></html>"),
    "wrong JSON": content(b'{"action": 3, "DocumentIncarnation": "x", "Events": null}'),
    "JSON with nonsense": content(
        b'{"action": "terminate", "time": "soon", "DocumentIncarnation": 9, "Events": [{"EventId": "e", "EventType": '
        b'"Preempt", "Resources": ["trainer_7"], "NotBefore": "Mon, 99 Foo 2026"}]}'
    ),
    "deep JSON": content(b"[" * 100000),
}
NOTICE_PATHS = {"aws": ACTION, "gcp": PREEMPTED, "azure": EVENTS}


def sources(cloud: str, server: MetadataServer) -> list[WatchedSource]:
    made = client(server.url)
    clouds = {
        "aws": lambda: aws_sources(made, POLL_S),
        "gcp": lambda: gcp.gcp_sources(made, wait_s=0),
        "azure": lambda: azure_sources(made, POLL_S),
    }
    return clouds[cloud]()[:1]


async def announce(cloud: str, server: MetadataServer) -> None:
    """Thirty seconds are left."""
    if cloud == "aws":
        server.interrupt(30)
    elif cloud == "gcp":
        await server.set_key(PREEMPTED, "TRUE")
    else:
        server.schedule(30)


@pytest.fixture(autouse=True)
def _long_polls_follow_one_another_quickly(monkeypatch):
    monkeypatch.setattr(gcp, "PAUSE_S", POLL_S)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cloud", NOTICE_PATHS)
@story
async def test_notice_arrives_after_a_burst_of_faults_that_is_reported_once(cloud, fault, caplog):
    async with MetadataServer() as server, listening(*sources(cloud, server)) as node:
        await server.replied(NOTICE_PATHS[cloud], 2)
        server.fail(FAULTS[fault], times=3)
        await server.until(lambda: not server.faults)
        await announce(cloud, server)
        assert is_imminent(await node.next(), 30)
        assert len(caplog.records) == 1


@pytest.mark.parametrize("cloud", NOTICE_PATHS)
@story
async def test_notice_stays_in_force_while_its_source_fails(cloud):
    async with MetadataServer() as server, listening(*sources(cloud, server)) as node:
        await announce(cloud, server)
        assert is_imminent(await node.next(), 30)
        server.fail(status(500), times=4)
        await server.until(lambda: not server.faults)
        await server.replied(NOTICE_PATHS[cloud], 2)
        assert node.is_silent()


@pytest.mark.parametrize("cloud", NOTICE_PATHS)
@story
async def test_connection_that_hangs_is_given_up_and_the_notice_arrives(cloud):
    async with MetadataServer() as server, listening(*sources(cloud, server)) as node:
        await server.replied(NOTICE_PATHS[cloud], 2)
        server.fail(hang)
        await server.until(lambda: not server.faults)
        await announce(cloud, server)
        assert is_imminent(await node.next(), 30)


@pytest.mark.parametrize("cloud", NOTICE_PATHS)
@story
async def test_watch_of_a_service_that_never_replies_ends_when_it_is_cancelled(cloud):
    async with MetadataServer() as server:
        server.fail(hang, times=100)
        endless = MetadataClient(client(server.url).clock, server.url, limit_s=3600)
        made = {"aws": aws_sources(endless, 1), "gcp": gcp.gcp_sources(endless), "azure": azure_sources(endless, 1)}
        async with listening(*made[cloud]):
            await server.until(lambda: len(server.requests) >= 1)


@story
async def test_service_that_nothing_provides_is_polled_until_it_appears():
    async with MetadataServer() as gone:
        port = gone.port
    source = aws_sources(client(gone.url), POLL_S)[0]
    with pytest.raises(SourceFailed, match="failed"):
        await source.poll()
    async with listening(source) as node, MetadataServer(port=port) as server:
        server.interrupt(60)
        assert is_imminent(await node.next(), 60)


@story
async def test_slow_body_is_read_and_a_body_slower_than_the_limit_is_given_up():
    async with MetadataServer() as server:
        server.fail(slow(b"abc", 0.01))
        reply = await client(server.url).get("/x", {})
        assert reply.body == b"abc"
        assert reply.took_s < LIMIT_S
        server.fail(slow(b"abc", LIMIT_S))
        with pytest.raises(NoReply, match=r"was not answered within 0.3 s"):
            await client(server.url).get("/x", {})


@story
async def test_bodies_in_chunks_and_without_a_length_are_complete():
    async with MetadataServer() as server:
        server.fail(chunked(b"TR", b"UE"))
        assert (await client(server.url).get("/x", {})).text == "TRUE"
        server.fail(raw(OK + b"\r\nTRUE\n"))
        assert (await client(server.url).get("/x", {})).text == "TRUE"


@pytest.mark.parametrize(
    "fault",
    [
        raw(OK + b"Content-Length: %d\r\n\r\n" % (BODY_MOST + 1)),
        raw(OK + b"\r\n" + b"x" * (BODY_MOST + 1)),
        chunked(*[b"x" * (BODY_MOST // 4)] * 5),
    ],
)
@story
async def test_body_beyond_the_limit_is_refused(fault):
    async with MetadataServer() as server:
        server.fail(fault)
        with pytest.raises(SourceFailed, match=f"more than {BODY_MOST}"):
            await client(server.url).get("/x", {})


@story
async def test_token_with_a_line_break_is_never_sent():
    async with MetadataServer() as server:
        server.fail(content(b"a\r\nHost: elsewhere"))
        with pytest.raises(SourceFailed, match="no token"):
            await aws_sources(client(server.url), POLL_S)[0].poll()
        with pytest.raises(SourceFailed, match="line break"):
            await client(server.url).get("/x", {"Token": "a\r\nb"})


@story
async def test_service_refuses_requests_without_the_token_or_header_of_its_cloud():
    async with MetadataServer() as server:
        asked = client(server.url)
        assert (await asked.get(ACTION, {})).status == 401
        assert (await asked.get(ACTION, {"X-aws-ec2-metadata-token": "stale"})).status == 401
        assert (await asked.send("PUT", TOKEN, {})).status == 400, "without a time to live"
        assert (await asked.get(PREEMPTED, {"Metadata-Flavor": "Amazon"})).status == 403
        assert (await asked.get(f"{EVENTS}?api-version=2020-07-01", {})).status == 400
        assert (await asked.get(EVENTS, {"Metadata": "true"})).status == 400, "without a version"
