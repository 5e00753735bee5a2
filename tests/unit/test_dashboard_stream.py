"""The stream of a run: a client that applies updates has what a new client has, wherever it begins and breaks."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from asgi_client import request
from journal_stories import HandClock
from recorded_folder import append, recorded_folder
from story_journal import story

from spotlight.control.market.prices import PriceTable
from spotlight.core.journal import Journal
from spotlight.surface.dashboard import followed_run
from spotlight.surface.dashboard.dashboard_app import dashboard_app
from spotlight.surface.dashboard.event_stream import RunStream
from spotlight.surface.dashboard.followed_run import FollowedRun
from spotlight.surface.dashboard.run_index import RunIndex
from spotlight.surface.feed_lines import feed_line

PRICES = PriceTable.load()
RECORDS = story()


class Client:
    """A page's share of a stream: position, panels and lines."""

    def __init__(self, run: FollowedRun) -> None:
        self.seq, _, self.panels = run.page()
        self.lines: list[int] = []

    def apply(self, body: bytes) -> None:
        fields = dict(line.split(": ", 1) for line in body.decode().strip().split("\n"))
        update = json.loads(fields["data"])
        assert fields["event"] == "update"
        assert update["from"] == self.seq, "an update continues where the last one ended"
        assert int(fields["id"]) == update["seq"]
        self.seq = update["seq"]
        self.panels.update(update["panels"])
        self.lines += [int(line.partition('data-seq="')[2].partition('"')[0]) for line in update["lines"]]


class LiveFolder:
    """A run folder that is being written."""

    def __init__(self, path: Path, records: int) -> None:
        self.folder = recorded_folder(path, RECORDS[:records])
        self._clock, self._at = HandClock(RECORDS[records - 1].at), records

    def write(self, records: int) -> None:
        with Journal.open(self.folder.journal, self._clock.now) as journal:
            append(journal, self._clock, RECORDS[self._at : self._at + records])
        self._at += records

    def follow(self) -> FollowedRun:
        return FollowedRun(self.folder, PRICES, "live")


def lines_after(seq: int, until: int) -> list[int]:
    return [record.seq for record in RECORDS if seq < record.seq <= until and feed_line(record)]


def test_client_that_applies_every_update_has_what_a_new_one_has(tmp_path):
    live = LiveFolder(tmp_path / "run", 60)
    run = live.follow()
    client, revision, began = Client(run), 0, 59
    revision = run.since(client.seq).revision
    for _ in range(6):
        live.write(40)
        assert run.refresh()
        for update in run.newer(revision):
            client.apply(update.body)
            revision = update.revision
    seq, _, panels = live.follow().page()
    assert client.seq == seq == 299
    assert client.panels == panels
    assert client.lines == lines_after(began, seq)


def test_server_that_is_started_again_continues_at_any_position_without_a_gap(tmp_path):
    live = LiveFolder(tmp_path / "run", 100)
    client = Client(live.follow())
    for records in (1, 70, 130):
        live.write(records)
        client.apply(live.follow().since(client.seq).body)
    seq, _, panels = live.follow().page()
    assert (client.seq, client.panels) == (seq, panels)
    assert client.lines == lines_after(99, seq)


def test_nothing_new_is_no_update_and_a_slow_client_gets_everything_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_run, "UPDATES_KEPT", 2)
    live = LiveFolder(tmp_path / "run", 60)
    run = live.follow()
    first = run.since(59)
    assert not run.refresh()
    assert run.newer(first.revision) == []
    for _ in range(3):
        live.write(20)
        assert run.refresh()
    assert run.newer(first.revision) is None


async def events_of(stream: RunStream, after: int, until: int) -> list[bytes]:
    """Events up to that position."""
    found = []
    async for event in stream.events(after):
        found.append(event)
        if event.startswith(b"id: %d\n" % until):
            break
    return found


def test_all_clients_of_a_run_share_one_poller_which_ends_with_the_last(tmp_path):
    live = LiveFolder(tmp_path / "run", 60)

    async def watch() -> None:
        stream = RunStream(live.follow())
        clients = [asyncio.create_task(events_of(stream, 59, 89)) for _ in range(4)]
        while stream.clients < 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        live.write(30)
        bodies = await asyncio.wait_for(asyncio.gather(*clients), 20)
        assert len({tuple(events) for events in bodies}) == 1
        while stream.clients:
            await asyncio.sleep(0.01)
        assert stream._poller is None

    asyncio.run(watch())


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    recorded_folder(runs / "run", RECORDS)
    return dashboard_app(RunIndex(runs, PRICES))


@pytest.mark.parametrize(("query", "headers"), [("?after=40", {}), ("?after=3", {"last_event_id": "40"})])
def test_position_is_the_pages_or_that_of_the_last_event(app, query, headers):
    reply = request(app, f"/runs/run/events{query}", most=2000, **headers)
    assert reply.headers["content-type"].startswith("text/event-stream")
    event = reply.text.partition("\n\n")[2]
    assert event.startswith(f"id: {len(RECORDS) - 1}\nevent: update\n")
    assert json.loads(event.partition("data: ")[2].partition("\n")[0])["from"] == 40


def test_position_beyond_the_journal_makes_the_page_load_anew(app):
    assert "event: reset" in request(app, "/runs/run/events?after=99999", most=20).text


def test_run_that_is_deleted_under_the_page_is_reported(tmp_path):
    live = LiveFolder(tmp_path / "run", 60)
    run = live.follow()
    shutil.rmtree(live.folder.path)
    run.refresh()
    assert "No such file" in run.page()[2]["damage"]


def test_damaged_journal_is_shown_up_to_the_damage(tmp_path):
    live = LiveFolder(tmp_path / "run", 60)
    run = live.follow()
    live.write(60)
    (segment,) = live.folder.journal.glob("segment-*.log")
    content = bytearray(segment.read_bytes())
    content[-1200] ^= 0xFF
    segment.write_bytes(content)
    run.refresh()
    run.refresh()
    seq, _, panels = run.page()
    assert 59 <= seq < 119
    assert "is damaged" in panels["damage"]
    assert "up to the damage" in panels["damage"]
