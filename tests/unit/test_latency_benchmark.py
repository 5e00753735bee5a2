"""Benchmark of latency: which iterations count, and a link that delays and loses packets."""

import asyncio
import random
import socket

import pytest

from benchmarks.latency.link import Direction
from benchmarks.latency.run import MACHINES, Condition, Round, figures_of, measured
from spotlight.core.events import Accepted, AnyEvent, IterationDone, Record
from spotlight.core.types import WorkerId


def accepted(worker: str) -> Accepted:
    return Accepted(request="r", attempt=1, worker=WorkerId(worker), digest="d", reward=1.0)  # type: ignore[arg-type]


def records(*events: AnyEvent) -> list[Record]:
    return [Record(seq=seq, at=float(seq), event=event) for seq, event in enumerate(events)]


def done(iteration: int) -> IterationDone:
    return IterationDone(iteration=iteration, rollout_s=2.0, train_s=1.0, reward=0.5, figures={})


def test_iterations_count_from_the_end_of_the_first_in_which_both_machines_worked():
    first, second = (accepted(f"{name}.1/0.1") for name in MACHINES)
    start = [accepted("reserved-1.1/0.1"), first, done(0), first, second, done(1)]
    whole = [first, second, done(2), second, done(3)]
    assert measured(records(*start, *whole), 3) == []
    found = measured(records(*start, *whole, first, done(4), first), 3)
    assert [record.event for record in found] == [*whole, first, done(4)]
    assert measured(records(*start, *whole), 2) == found[: len(whole)]


def test_figures_are_the_shares_of_the_loopback_device():
    near, far = (Condition(samples_per_s=2.0 * rate, machines_per_s=rate, file_s=1 / rate) for rate in (1.0, 0.5))
    figures = figures_of([Round(loopback=near, link=far)])
    assert (figures["throughput_share"].value, figures["machines_share"].value) == (0.5, 0.5)
    assert (figures["link_file_s"].value, figures["loopback_file_s"].value) == (2.0, 1.0)


@pytest.mark.parametrize("loss", [0.0, 0.25])
def test_link_delivers_in_order_what_it_does_not_lose(loss):
    ours, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    target, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    drawn = random.Random(7)
    kept = [number for number in range(100) if drawn.random() >= loss]

    async def story() -> list[int]:
        source.setblocking(False)
        Direction(source.fileno(), target.fileno(), 0.001, loss, 1e9, seed=7)
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        found = []
        for number in range(100):
            await loop.sock_sendall(ours, bytes([number]))
        while len(found) < len(kept):
            found += await asyncio.wait_for(loop.sock_recv(theirs, 10), 10)
        loop.remove_reader(source.fileno())
        return found

    ours.setblocking(False)
    assert asyncio.run(story()) == kept
    for each in (ours, source, target, theirs):
        each.close()
