"""Several sources at once: joined notices, withdrawals, failures, SIGTERM and a file."""

import asyncio
import os
import signal
import time
from contextlib import aclosing

import pytest
from metadata_server import MetadataServer
from notice_stories import POLL_S, StoryClock, client, is_imminent, listening, story

from spotlight.core.work import NoticeKind
from spotlight.node.notices.aws import aws_sources
from spotlight.node.notices.azure import azure_sources
from spotlight.node.notices.deadlines import wall_time
from spotlight.node.notices.file import NoticeFile
from spotlight.node.notices.joined import JoinedNotices
from spotlight.node.notices.notice import Notice, WatchedSource
from spotlight.node.notices.sigterm import Sigterm
from spotlight.node.notices.watch import watch_all


def imminent(source: str, deadline: float) -> Notice:
    return Notice(kind=NoticeKind.IMMINENT, source=source, deadline=deadline)


def advisory(source: str) -> Notice:
    return Notice(kind=NoticeKind.ADVISORY, source=source)


def withdrawn(source: str) -> Notice:
    return Notice(kind=NoticeKind.ADVISORY, source=source, withdrawn=True)


def shown(notice: Notice | None) -> tuple[str, str, float | None] | None:
    return notice and ("withdrawn" if notice.withdrawn else notice.kind.value, notice.source, notice.deadline)


# -- joining -----------------------------------------------------------------------------------------------------------


def test_same_event_from_two_sources_is_announced_once():
    joined = JoinedNotices()
    assert shown(joined.update(imminent("aws", 100.0))) == ("imminent", "aws", 100.0)
    assert joined.update(imminent("sigterm", 99.5)) is None
    assert joined.update(imminent("ray", 140.0)) is None


def test_nearer_deadline_of_another_source_wins_and_its_withdrawal_leaves_the_later_one():
    joined = JoinedNotices()
    joined.update(imminent("aws", 100.0))
    assert shown(joined.update(imminent("sigterm", 20.0))) == ("imminent", "sigterm", 20.0)
    assert shown(joined.update(withdrawn("sigterm"))) == ("imminent", "aws", 100.0)
    assert shown(joined.update(withdrawn("aws"))) == ("withdrawn", "aws", 100.0)
    assert joined.update(withdrawn("aws")) is None


def test_withdrawal_by_one_of_two_sources_of_the_same_event_changes_nothing():
    joined = JoinedNotices()
    joined.update(imminent("aws", 100.0))
    joined.update(imminent("sigterm", 100.5))
    assert joined.update(withdrawn("aws")) is None
    assert shown(joined.update(withdrawn("sigterm"))) == ("withdrawn", "aws", 100.0)


def test_advisory_notices_never_hide_or_end_an_imminent_one():
    joined = JoinedNotices()
    assert shown(joined.update(advisory("rebalance"))) == ("advisory", "rebalance", None)
    assert joined.update(advisory("maintenance")) is None
    assert shown(joined.update(imminent("aws", 100.0))) == ("imminent", "aws", 100.0)
    assert joined.update(withdrawn("rebalance")) is None
    assert shown(joined.update(withdrawn("aws"))) == ("advisory", "maintenance", None)
    assert shown(joined.update(withdrawn("maintenance"))) == ("withdrawn", "maintenance", None)


def test_deadline_that_moves_later_replaces_the_earlier_one_and_drift_does_not():
    joined = JoinedNotices()
    joined.update(imminent("aws", 100.0))
    assert joined.update(imminent("aws", 100.9)) is None
    assert shown(joined.update(imminent("aws", 130.0))) == ("imminent", "aws", 130.0)


def test_imminent_notice_without_a_deadline_is_refused():
    with pytest.raises(ValueError, match="no deadline"):
        Notice(kind=NoticeKind.IMMINENT, source="trace")


# -- watching ----------------------------------------------------------------------------------------------------------


class Scripted(WatchedSource):
    """Returns or raises what the script says, then the last entry again."""

    pause_s = 0.0

    def __init__(self, name: str, *script: Notice | Exception | None) -> None:
        self.name = name
        self.script = list(script)
        self.polls = 0
        self.is_closed = False

    async def poll(self) -> Notice | None:
        self.polls += 1
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(entry, Exception):
            raise entry
        return entry

    def close(self) -> None:
        self.is_closed = True


@story
async def test_two_clouds_at_once_give_one_notice_with_the_nearest_deadline():
    async with MetadataServer() as server:
        server.interrupt(100)
        server.schedule(30)
        both = [*aws_sources(client(server.url), POLL_S), *azure_sources(client(server.url), POLL_S)]
        async with listening(*both) as node:
            notice = await node.next()
            while notice.source != "azure":
                notice = await node.next()
            assert is_imminent(notice, 30)
            await server.replied("/latest/meta-data/spot/instance-action")
            assert node.is_silent()


@story
async def test_source_with_a_defect_is_reported_once_per_outage_and_the_others_go_on(caplog):
    broken = Scripted("broken", ZeroDivisionError("x"), KeyError("y"), None, RuntimeError("z"), RecursionError())
    whole = Scripted("whole", None, imminent("whole", time.monotonic() + 50))
    async with listening(broken, whole) as node:
        assert (await node.next()).source == "whole"
        while broken.polls < 6:
            await asyncio.sleep(0)
    assert [record.args for record in caplog.records if record.levelname == "WARNING"] == [
        ("broken", "ZeroDivisionError: x"),
        ("broken", "RuntimeError: z"),
    ]


@story
async def test_end_of_a_watch_closes_its_sources_and_a_watch_without_sources_waits():
    source = Scripted("one", imminent("one", 5.0))
    async with aclosing(watch_all([source])) as notices:
        assert (await anext(notices)).source == "one"
    assert source.is_closed
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch_all([])), 0.01)


# -- SIGTERM and files -------------------------------------------------------------------------------------------------


@story
async def test_sigterm_is_an_imminent_notice_and_a_second_one_does_not_extend_it():
    clock = StoryClock()
    source = Sigterm(clock, grace_s=25)
    async with listening(source) as node:
        while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_imminent(await node.next(), 25)
        clock.advanced_s = 10
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(5):
            await asyncio.sleep(POLL_S)
        assert node.is_silent()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("content", "seconds"),
    [
        (b"", 40),
        (b"12.5\n", 12.5),
        (b"soon", 40),
        (b"nan", 40),
        (b"-3", 40),
        (b"\xff\xfe", 40),
        (b"0", 0),
        (b"1e999", 40),
    ],
)
@story
async def test_file_that_appears_is_a_notice_of_its_seconds_and_its_removal_withdraws_it(content, seconds, tmp_path):
    path = tmp_path / "preempted"
    async with listening(NoticeFile(path, StoryClock(), POLL_S, grace_s=40)) as node:
        await asyncio.sleep(3 * POLL_S)
        assert node.is_silent()
        (tmp_path / "new").write_bytes(content)
        (tmp_path / "new").rename(path)
        assert is_imminent(await node.next(), seconds)
        path.unlink()
        assert (await node.next()).withdrawn
        assert node.is_silent()


@story
async def test_file_with_new_content_gives_a_nearer_deadline(tmp_path):
    path = tmp_path / "preempted"
    path.write_text("100")
    async with listening(NoticeFile(path, StoryClock(), POLL_S)) as node:
        assert is_imminent(await node.next(), 100)
        path.write_text("20")
        assert is_imminent(await node.next(), 20)


@story
async def test_pipe_or_folder_in_place_of_the_file_is_a_notice_and_blocks_nothing(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        async with listening(NoticeFile(path, StoryClock(), POLL_S, grace_s=40)) as node:
            assert is_imminent(await node.next(), 40)


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["2026-11-05T08:22:00Z", "2026-11-05T08:22:00", "Thu, 05 Nov 2026 08:22:00 GMT", "2026-11-05T09:22:00+01:00"],
)
def test_time_of_any_cloud_is_read(text):
    assert wall_time(text) == 1793866920.0


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2026-13-05T08:22:00Z", "Mon, 99 Foo 2026", "1 Jan 0001 00:00:00 +99999999999999999", "9" * 5000],
)
def test_time_that_is_none_is_a_value_error(text):
    with pytest.raises(ValueError):
        wall_time(text)
