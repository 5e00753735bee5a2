"""Notices of GCP: long polls that answer, end, hang, and come from another server."""

import pytest
from metadata_server import MAINTENANCE, PREEMPTED, MetadataServer, hang, status
from notice_stories import StoryClock, client, is_imminent, listening, story

from spotlight.core.work import NoticeKind
from spotlight.node.notices.gcp import gcp_sources
from spotlight.node.notices.notice import WatchedSource


def sources(server: MetadataServer, wait_s: int = 10, clock: StoryClock | None = None) -> list[WatchedSource]:
    return gcp_sources(client(server.url, clock), grace_s=30, wait_s=wait_s)


def long_polls(server: MetadataServer) -> int:
    return sum(exchange.path == PREEMPTED and "last_etag" in exchange.query for exchange in server.requests)


@story
async def test_preemption_answers_the_long_poll_and_its_withdrawal_too():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        await server.until(lambda: server.waiting == 2)
        assert node.is_silent()
        await server.set_key(PREEMPTED, "TRUE")
        notice = await node.next()
        assert is_imminent(notice, 30)
        assert notice.source == "gcp"
        assert long_polls(server) == 1, "the poll that waited is the one that was answered"
        await server.set_key(PREEMPTED, "FALSE")
        assert (await node.next()).withdrawn
        assert node.is_silent()


@story
async def test_preemption_before_the_first_query_is_announced_at_once():
    async with MetadataServer() as server:
        await server.set_key(PREEMPTED, "TRUE")
        async with listening(*sources(server)) as node:
            assert is_imminent(await node.next(), 30)


@story
async def test_long_poll_that_ends_without_a_change_is_issued_again_and_keeps_the_deadline():
    clock = StoryClock()
    async with MetadataServer() as server, listening(*sources(server, 0, clock)) as node:
        await server.replied(PREEMPTED, 3)
        assert long_polls(server) >= 2
        assert node.is_silent()
        await server.set_key(PREEMPTED, "TRUE")
        assert is_imminent(await node.next(), 30)
        clock.advanced_s = 10
        await server.replied(PREEMPTED, 2)
        assert node.is_silent(), "later polls of the same preemption announce nothing"


@story
async def test_long_poll_that_hangs_is_given_up_and_followed_by_a_plain_query(caplog):
    async with MetadataServer() as server:
        server.fail(hang, path=f"{PREEMPTED}?wait_for_change")
        async with listening(*sources(server, wait_s=0)) as node:
            await server.until(lambda: long_polls(server) == 1)
            await server.set_key(PREEMPTED, "TRUE")
            assert is_imminent(await node.next(), 30)
            assert not caplog.records, "a long poll that ends late is no failure"


@story
async def test_change_during_a_failure_is_not_missed():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        await server.until(lambda: server.waiting == 2)
        server.fail(status(503), times=3, path=PREEMPTED)
        await server.set_key(MAINTENANCE, "NONE")
        await server.until(lambda: not server.faults)
        await server.set_key(PREEMPTED, "TRUE")
        assert is_imminent(await node.next(), 30)


@story
async def test_reply_without_the_flavor_header_is_not_believed(caplog):
    async with MetadataServer(sends_flavor=False) as server:
        await server.set_key(PREEMPTED, "TRUE")
        async with listening(*sources(server)) as node:
            await server.replied(PREEMPTED)
            assert node.is_silent()
            assert "Metadata-Flavor" in caplog.text
            server.sends_flavor = True
            assert is_imminent(await node.next(), 30)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("TERMINATE_ON_HOST_MAINTENANCE", NoticeKind.ADVISORY), ("MIGRATE_ON_HOST_MAINTENANCE", None)],
)
@story
async def test_maintenance_that_ends_the_instance_is_advisory_and_a_migration_is_none(value, kind):
    async with MetadataServer() as server, listening(*sources(server, wait_s=0)) as node:
        await server.set_key(MAINTENANCE, value)
        await server.replied(MAINTENANCE, 2)
        assert node.is_silent() if kind is None else (await node.next()).kind is kind
