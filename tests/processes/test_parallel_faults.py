"""Groups that lose members: survivors raise, name the member they waited for, and form again without leaks."""

from collections.abc import Iterator

import pytest
from parallel_ranks import NODE, Problem, Ranks

FOREVER = 1_000_000
"""More exchanges than any rank makes before the test ends."""


@pytest.fixture
def ranks(tmp_path) -> Iterator[Ranks]:
    started = Ranks(4, tmp_path)
    yield started
    started.end()


def start_exchanges(ranks: Ranks, members: list[int], limit_s: float = 600.0) -> None:
    """Start exchanges on all members; returns when the first ones are complete."""
    assert ranks.form(members, limit_s) == [len(members)] * len(members)
    assert len(set(map(str, ranks.all(members, "exchange", 20)))) == 1
    for rank in members:
        ranks.send(rank, "exchange", FOREVER)


def test_rank_killed_inside_an_exchange_makes_all_survivors_raise_long_before_the_limit(ranks):
    """The limit is 600 s, far beyond the time limit of `reply`, so that only the closed sockets can end this."""
    for members, victim in (([0, 1, 2, 3], 3), ([0, 1, 2], 0)):
        start_exchanges(ranks, members)
        ranks.kill(victim)
        for rank in sorted({*members} - {victim}):
            problem = ranks.reply(rank)
            assert problem.kind == "CrewBroken"
            assert f"group {ranks.token}" in problem.message
    assert ranks.form([1, 2]) == [2, 2]
    assert len(set(ranks.all([1, 2], "exchange", 3))) == 1


def test_survivors_of_two_ranks_killed_at_once_form_again(ranks):
    start_exchanges(ranks, [0, 1, 2, 3])
    ranks.kill(1)
    ranks.kill(2)
    assert [ranks.reply(rank).kind for rank in (0, 3)] == ["CrewBroken", "CrewBroken"]
    assert ranks.form([3, 0]) == [2, 2]


def test_hung_rank_is_named_by_its_peer_when_the_limit_is_reached(ranks):
    start_exchanges(ranks, [0, 1], limit_s=1.0)
    ranks.pause(1)
    problem = ranks.reply(0)
    assert (problem.kind, problem.waited_for) == ("CrewBroken", f"{NODE}/1")


def test_forming_without_one_of_the_members_fails_and_the_others_form_without_it(ranks):
    ranks.kill(2)
    ranks.epoch += 1
    ranks.store.open(ranks.token)
    members = tuple(f"{NODE}/{rank}" for rank in (0, 1, 2))
    for rank in (0, 1):
        ranks.send(rank, "join", ranks.token, members, rank, str(ranks.path), 1.0)
    assert [ranks.reply(rank).kind for rank in (0, 1)] == ["CrewBroken", "CrewBroken"]
    assert ranks.form([1, 0]) == [2, 2]


def test_rank_of_an_old_epoch_is_refused_by_the_store_while_the_new_one_serves(ranks):
    assert ranks.form([0, 1]) == [2, 2]
    old = ranks.token
    assert ranks.form([0, 2]) == [2, 2]
    refusal = ranks.call(1, "join", old, (f"{NODE}/0", f"{NODE}/1"), 1, str(ranks.path), 1.0)
    assert isinstance(refusal, Problem)
    assert "neither forms nor serves" in refusal.message
    assert len(set(ranks.all([0, 2], "exchange", 3))) == 1


def test_hundred_regroups_leak_neither_files_nor_threads_nor_keys(ranks):
    for _ in range(3):
        ranks.form([0, 1, 2])
    before = ranks.all([0, 1, 2], "footprint")
    for number in range(110):
        members = ([0, 1, 2], [0, 1], [2, 0])[number % 3]
        assert ranks.form(members) == [len(members)] * len(members)
    assert ranks.store.store.keys <= 3
    assert ranks.all([0, 1, 2], "footprint") == before
