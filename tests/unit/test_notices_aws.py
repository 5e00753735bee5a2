"""Notices of AWS: tokens, interruptions, recommendations, and clocks that disagree."""

import time

import pytest
from metadata_server import ACTION, REBALANCE, TOKEN, MetadataServer
from notice_stories import POLL_S, StoryClock, client, is_imminent, listening, story

from spotlight.core.work import NoticeKind
from spotlight.node.notices.aws import aws_sources
from spotlight.node.notices.notice import WatchedSource


def sources(server: MetadataServer, clock: StoryClock | None = None) -> list[WatchedSource]:
    return aws_sources(client(server.url, clock), POLL_S)


@story
async def test_interruption_is_announced_when_404_becomes_200_and_only_once():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        await server.replied(ACTION)
        assert node.is_silent()
        server.interrupt(100)
        polls = len(server.statuses(ACTION))
        notice = await node.next()
        assert len(server.statuses(ACTION)) <= polls + 2, "polls a second apart see it within 2 s"
        assert is_imminent(notice, 100)
        assert notice.source == "aws"
        await server.replied(ACTION)
        assert node.is_silent()
        assert set(server.statuses(ACTION)) == {404, 200}
        assert len(server.statuses(TOKEN)) <= 2, "one token serves many requests"


@story
async def test_token_that_expires_between_polls_is_replaced_without_a_failure(caplog):
    async with MetadataServer() as server, listening(*sources(server)) as node:
        await server.replied(ACTION)
        server.expire_tokens()
        await server.until(lambda: 401 in server.statuses(ACTION) or 401 in server.statuses(REBALANCE))
        server.interrupt(60)
        assert is_imminent(await node.next(), 60)
        assert not caplog.records


@story
async def test_token_is_renewed_before_it_expires():
    clock = StoryClock()
    async with MetadataServer(token_ttl_s=600) as server, listening(*sources(server, clock)):
        await server.replied(ACTION)
        first = len(server.statuses(TOKEN))
        clock.advanced_s = 0.95 * 600
        await server.until(lambda: len(server.statuses(TOKEN)) > first)
        assert 401 not in server.statuses(ACTION)


@story
async def test_recommendation_is_advisory_and_gives_way_to_the_interruption_and_both_are_withdrawn():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.recommend()
        advised = await node.next()
        assert (advised.kind, advised.deadline, advised.withdrawn) == (NoticeKind.ADVISORY, None, False)
        server.interrupt(120)
        assert is_imminent(await node.next(), 120)
        server.interruption = None
        assert await node.next() == advised, "the recommendation is still in force"
        server.rebalance = None
        withdrawn = await node.next()
        assert (withdrawn.kind, withdrawn.withdrawn) == (NoticeKind.ADVISORY, True)


@story
async def test_kill_earlier_than_promised_is_a_nearer_deadline():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.interrupt(110)
        assert is_imminent(await node.next(), 110)
        server.interrupt(20)
        assert is_imminent(await node.next(), 20)


@pytest.mark.parametrize("wrong_s", [-3600.0, 3600.0])
@story
async def test_deadline_is_right_on_a_machine_whose_clock_is_an_hour_off(wrong_s):
    async with MetadataServer() as server, listening(*sources(server, StoryClock(wrong_s))) as node:
        server.interrupt(90)
        assert is_imminent(await node.next(), 90)


@pytest.mark.parametrize(("wrong_s", "seconds"), [(-3600.0, 120), (3600.0, 0)])
@story
async def test_without_a_date_header_a_wrong_clock_never_gives_more_than_aws_promises(wrong_s, seconds):
    async with MetadataServer(sends_date=False) as server, listening(*sources(server, StoryClock(wrong_s))) as node:
        started = time.monotonic()
        server.interrupt(90)
        notice = await node.next()
        assert is_imminent(notice, seconds)
        assert notice.deadline >= started, "no deadline is before its arrival"


@pytest.mark.parametrize("skew_s", [-300.0, 300.0])
@pytest.mark.parametrize("sends_date", [True, False])
@story
async def test_deadline_of_a_service_whose_clock_is_minutes_off_is_right_or_within_the_bounds(skew_s, sends_date):
    async with MetadataServer(skew_s=skew_s, sends_date=sends_date) as server, listening(*sources(server)) as node:
        started = time.monotonic()
        server.interrupt(90)
        notice = await node.next()
        if sends_date:
            assert is_imminent(notice, 90)
        assert started <= notice.deadline <= time.monotonic() + 120


@story
async def test_clock_that_is_set_after_the_notice_does_not_move_the_deadline():
    clock = StoryClock()
    async with MetadataServer(sends_date=False) as server, listening(*sources(server, clock)) as node:
        server.interrupt(60)
        assert is_imminent(await node.next(), 60)
        clock.wrong_s = 40
        await server.replied(ACTION)
        assert node.is_silent()


@story
async def test_hibernation_leaves_no_time():
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.interrupt(100, action="hibernate")
        notice = await node.next()
        assert notice.kind is NoticeKind.IMMINENT
        assert notice.seconds_left(time.monotonic()) == 0


@story
async def test_fault_of_the_recommendation_does_not_delay_the_interruption(caplog):
    async with MetadataServer() as server, listening(*sources(server)) as node:
        server.rebalance = {"garbage": "yes"}
        await server.replied(REBALANCE)
        server.interrupt(100)
        assert is_imminent(await node.next(), 100)
        assert [record.args[0] for record in caplog.records] == ["aws-rebalance"], "reported once"
