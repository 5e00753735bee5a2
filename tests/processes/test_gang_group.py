"""Gangs of real processes over gloo: sums, deaths, and the next gang in the same processes."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gang_processes import GangRanks, Raised

from spotlight.compute.parallel import gang_group
from spotlight.compute.parallel.gang_group import GangLinks, form_gang, open_store
from spotlight.compute.parallel.group import DeviceKind
from spotlight.core.errors import ConfigError, EnvironmentProblem

SIZES = [1, 0, 1000, 3, 70_001]


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(4)
    yield started
    started.end()


def expected_sums(count: int, dtype: torch.dtype) -> list[bytes]:
    """Sums in rank order."""
    totals: list[torch.Tensor] = []
    for rank in range(count):
        generator = torch.Generator().manual_seed(rank)
        tensors = [torch.randn(size, generator=generator).to(dtype) for size in SIZES]
        tensors += [torch.full((3,), rank + 1), torch.randn(4, 6, generator=generator).t()]
        totals = tensors if not totals else [a + b for a, b in zip(totals, tensors, strict=True)]
    return [total.contiguous().view(torch.uint8).numpy().tobytes() for total in totals]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_sums_are_those_in_rank_order_bit_for_bit_on_every_rank(ranks, count, dtype):
    assert ranks.form(range(count)) == [(rank, count) for rank in range(count)]
    expected = [expected_sums(count, getattr(torch, dtype))] * count
    assert ranks.all(range(count), "summed", SIZES, dtype) == expected
    assert ranks.all(range(count), "summed", SIZES, dtype, 5000) == expected, "buffers change no bit"


def test_broadcast_gather_and_crews(ranks):
    ranks.form(range(4))
    assert ranks.all(range(4), "broadcast", 2) == [[[2.0] * 5, [2] * 4]] * 4
    value = {"a": [1, 2.5, None], "b": b"x"}
    assert ranks.all(range(4), "gather", value) == [[[rank, value] for rank in range(4)]] * 4
    assert ranks.all(range(4), "crew_sum", 2) == [[0.0, 1.0]] * 2 + [[2.0, 3.0]] * 2
    assert ranks.all(range(4), "crew_sum", 1) == [None] * 4
    refused = ranks.call(0, "crew_sum", 3)
    assert refused.kind == "ConfigError"
    assert "4 training ranks cannot be divided into crews of 3" in refused.message


def test_rank_killed_inside_a_sum_is_named_and_the_survivors_form_the_next_gang():
    ranks = GangRanks(3)
    try:
        ranks.form([0, 1, 2])
        ranks.send(2, "die_inside_a_sum", SIZES)
        for process in (0, 1):
            ranks.send(process, "summed", SIZES, "float32")
        lost = [ranks.reply(process) for process in (0, 1)]
        assert [each.kind for each in lost] == ["RankLost"] * 2
        assert any(each.waited_for == 2 for each in lost)
        assert all("form the next one" in each.message for each in lost)
        assert max(each.seconds for each in lost) < 5.0
        again = ranks.call(0, "use_again")
        assert "this rank had dropped the gang" in again.message
        ranks.start(3)
        assert ranks.form([1, 0, 3]) == [(0, 3), (1, 3), (2, 3)]
        assert ranks.all([1, 0, 3], "summed", SIZES, "float32") == [expected_sums(3, torch.float32)] * 3
    finally:
        ranks.end()


def test_death_is_seen_by_a_rank_that_waits_for_another_busy_one():
    ranks = GangRanks(3)
    try:
        ranks.form([0, 1, 2])
        ranks.send(0, "gather", "early")
        ranks.pause(1)
        ranks.kill(2)
        lost = ranks.reply(0)
        assert isinstance(lost, Raised)
        assert (lost.kind, lost.waited_for) == ("RankLost", 2)
    finally:
        ranks.end()


def test_rank_that_hangs_is_given_up_after_the_limit():
    ranks = GangRanks(2)
    try:
        ranks.form([0, 1], limit_s=0.5)
        ranks.pause(1)
        lost = ranks.call(0, "gather", "early")
        assert (lost.kind, lost.waited_for) == ("RankLost", 1)
    finally:
        ranks.end()


def test_abort_from_another_thread_ends_the_exchange_here_and_at_the_others(ranks):
    ranks.form([0, 1])
    ranks.send(0, "sum_with_abort_after", 0.2)
    assert ranks.reply(0).kind == "RankLost"
    assert ranks.call(1, "gather", "late").kind == "RankLost"


def test_gangs_formed_again_and_again_leave_no_sockets_or_threads(ranks):
    ranks.form([0, 1])
    before = ranks.all([0, 1], "footprint")
    for _ in range(5):
        ranks.form([0, 1])
    assert ranks.all([0, 1], "footprint") == before


def test_rank_that_never_comes_is_reported(ranks):
    address = ranks.call(0, "open_for", {})
    lost = ranks.call(0, "join", address, 999, 0, 2, {"form_limit_s": 0.5})
    assert lost.kind == "RankLost"
    assert "could not connect to the other 1" in lost.message


def test_taken_port_is_refused_with_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=rf"cannot meet at 127.0.0.1:{port} .*free that port"):
            open_store("127.0.0.1", port)


def test_nccl_that_torch_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(gang_group.dist, "is_nccl_available", lambda: False)
    with pytest.raises(EnvironmentProblem, match="over nccl, which this build of torch lacks"):
        form_gang("127.0.0.1:1", 1, 0, 2, GangLinks(transport=DeviceKind.NCCL))


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 1)])
def test_rank_outside_of_its_gang_is_refused(rank, ranks):
    with pytest.raises(ConfigError, match=rf"rank {rank} is not in a gang of {ranks}"):
        form_gang("127.0.0.1:1", 1, rank, ranks)


def test_store_listens_on_its_own_address_alone():
    store, address = open_store("127.0.0.1", 0)
    port = f"{int(address.rpartition(':')[2]):04X}"
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port}")]
    assert listening == ["0100007F"]
    del store
