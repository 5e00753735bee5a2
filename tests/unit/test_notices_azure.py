"""Notices of Azure: events of this machine and of others, cancellation, approval, and a slow first call."""

import asyncio
import json
import time

import pytest
from metadata_server import EVENTS, MetadataServer, status
from notice_stories import LIMIT_S, POLL_S, StoryClock, client, is_imminent, listening, story

from spotlight.core.work import NoticeKind
from spotlight.node.notices.azure import azure_sources
from spotlight.node.notices.notice import WatchedSource


def sources(server: MetadataServer, clock: StoryClock | None = None, approve: bool = False) -> list[WatchedSource]:
    return azure_sources(client(server.url, clock), POLL_S, approve)


def approvals(server: MetadataServer) -> list[object]:
    return [json.loads(exchange.body) for exchange in server.requests if exchange.method == "POST"]


@story
async def test_preemption_of_this_machine_is_announced_once_and_never_approved():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        await server.replied(EVENTS)
        assert node.is_silent()
        server.schedule(30)
        assert is_imminent(await node.next(), 30)
        await server.replied(EVENTS)
        assert node.is_silent()
        assert not approvals(server)


@story
async def test_events_of_other_machines_and_pauses_are_no_notice():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.schedule(30, machine="trainer_8")
        server.schedule(30, kind="Freeze")
        await server.replied(EVENTS)
        assert node.is_silent()
        server.schedule(20, machine="TRAINER_7")
        assert is_imminent(await node.next(), 20), "names are compared without case"


@story
async def test_nearest_of_several_events_counts_and_the_other_remains_after_a_cancellation():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.schedule(300, kind="Redeploy")
        assert is_imminent(await node.next(), 300)
        server.schedule(30)
        assert is_imminent(await node.next(), 30)
        server.set_events(server.events[0])
        assert is_imminent(await node.next(), 300)
        server.set_events()
        assert (await node.next()).withdrawn
        assert node.is_silent()


@story
async def test_event_that_starts_early_leaves_no_time_and_one_that_starts_late_changes_nothing():
    clock = StoryClock()
    async with MetadataServer() as server, listening(*sources(server, clock)) as node:
        server.schedule(100, kind="Reboot")
        assert is_imminent(await node.next(), 100)
        server.set_events(server.events[0] | {"EventStatus": "Started", "NotBefore": ""})
        assert (await node.next()).seconds_left(time.monotonic()) == 0
        clock.advanced_s = 200
        server.set_events(*server.events)
        await server.replied(EVENTS)
        assert node.is_silent()


@pytest.mark.parametrize("wrong_s", [-900.0, 900.0])
@story
async def test_not_before_is_read_by_the_clock_of_the_service(wrong_s):
    async with MetadataServer() as server, listening(*sources(server, StoryClock(wrong_s))) as node:
        server.schedule(20)
        assert is_imminent(await node.next(), 20)


@pytest.mark.parametrize(
    ("wrong_s", "kind", "seconds"), [(-300, "Preempt", 30), (-3000, "Reboot", 900), (300, "Preempt", 0)]
)
@story
async def test_without_a_date_header_a_wrong_clock_never_gives_more_than_azure_documents(wrong_s, kind, seconds):
    async with MetadataServer(sends_date=False) as server, listening(*sources(server, StoryClock(wrong_s))) as node:
        started = time.monotonic()
        server.schedule(25, kind=kind)
        notice = await node.next()
        assert is_imminent(notice, seconds)
        assert notice.deadline >= started, "no deadline is before its arrival"


@pytest.mark.parametrize("skew_s", [-300.0, 300.0])
@story
async def test_deadline_of_a_service_whose_clock_is_minutes_off_is_right(skew_s):
    async with MetadataServer(skew_s=skew_s) as server, listening(*sources(server)) as node:
        server.schedule(25)
        assert is_imminent(await node.next(), 25)


@story
async def test_approval_follows_the_notice_once_where_it_is_on():
    async with MetadataServer() as server, listening(*sources(server, approve=True)) as node:
        server.schedule(30)
        server.schedule(30, machine="trainer_8")
        own = server.events[0]["EventId"]
        assert (await node.next()).kind is NoticeKind.IMMINENT
        await server.until(lambda: bool(approvals(server)))
        await server.replied(EVENTS)
        assert approvals(server) == [{"StartRequests": [{"EventId": own}]}]


@story
async def test_first_call_that_takes_longer_than_others_may_is_awaited(caplog):
    async def late(exchange):
        await asyncio.sleep(2 * LIMIT_S)
        await server._azure(exchange)

    async with MetadataServer() as server:
        server.schedule(25)
        server.fail(late, path=EVENTS)
        async with listening(*sources(server)) as node:
            assert is_imminent(await node.next(), 25)
            assert not caplog.records


@story
async def test_machine_whose_name_is_unknown_at_first_is_found_later():
    async with MetadataServer() as server:
        server.schedule(25)
        server.fail(status(429), times=2)
        async with listening(*sources(server)) as node:
            assert is_imminent(await node.next(), 25)
