"""Leases of a slot at a time: the same from the followed tail and from the journal."""

import pytest
from recorded_folder import recorded_folder
from story_journal import story

from spotlight.core.journal import JournalConfig, Sync, read
from spotlight.surface.dashboard.lease_lookup import LeaseLookup

SMALL = JournalConfig(sync=Sync.NEVER, segment_bytes=6000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return recorded_folder(tmp_path_factory.mktemp("runs") / "run", story(iterations=8), journal=SMALL, pictures=0)


def shown(moment) -> list[tuple[str, int, str]]:
    return [(lease.request, lease.attempt, lease.outcome) for lease in moment.leases]


def test_lost_machine_lets_go_of_its_leases_and_another_attempt_continues(folder):
    lookup = LeaseLookup(folder.journal, since=1e9)
    # Iteration 1 rolls out from 19.5 s; spot-2 goes half-way, without notice.
    before, after = lookup.at("spot-2/0", 20.0), lookup.at("reserved-1/0", 24.0)
    assert {(attempt, outcome) for _, attempt, outcome in shown(before)} == {(1, "lost")}
    assert ("rollout/1/0/103", 2, "accepted") in shown(after)
    (continued,) = [lease for lease in after.leases if lease.request == "rollout/1/0/103"]
    assert continued.step == 4
    assert lookup.at("spot-2/0", 24.6).leases == []


def test_followed_tail_and_journal_give_the_same(folder):
    from_journal = LeaseLookup(folder.journal, since=1e9)
    followed = LeaseLookup(folder.journal, since=0.0)
    for record in read(folder.journal):
        followed.apply(record)
    for at in (5.0, 20.0, 37.5, 60.1, 100.0):
        for row in ("reserved-1/0", "spot-1/0", "spot-1/1", "spot-2/0"):
            assert shown(followed.at(row, at)) == shown(from_journal.at(row, at)), (row, at)


def test_many_leases_are_counted_beyond_the_newest(folder, monkeypatch):
    monkeypatch.setattr("spotlight.surface.dashboard.lease_lookup.MOST_SHOWN", 2)
    moment = LeaseLookup(folder.journal, since=1e9).at("reserved-1/0", 5.0)
    assert (len(moment.leases), moment.more) == (2, 2)
    assert LeaseLookup(folder.journal, since=1e9).at("no such row", 5.0).leases == []
