"""Heartbeats of a simulated worker: their times, after a freeze, and after a stop and a start."""

import asyncio
from collections.abc import Callable, Coroutine

from spotlight.sim.heartbeat import Heartbeat
from spotlight.sim.virtual_loop import run_virtually

Scenario = Callable[[Heartbeat, list[object]], Coroutine[None, None, None]]


def beats(scenario: Scenario) -> list[object]:
    """The times of all heartbeats, and what else the scenario notes, in order."""

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        noted: list[object] = []
        await scenario(Heartbeat(lambda: noted.append(loop.time())), noted)
        return noted

    return run_virtually(main())


def test_heartbeat_comes_after_all_that_is_due_at_its_instant() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(0.5)
        asyncio.get_running_loop().call_at(1.0, noted.append, "set later for the same instant")
        await asyncio.sleep(1.0)

    assert beats(scenario) == ["set later for the same instant", 1.0]


def test_heartbeats_missed_in_a_freeze_come_as_one_at_the_thaw_and_the_next_an_interval_later() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.freeze()
        await asyncio.sleep(4.0)
        noted.append("thaw")
        heartbeat.thaw()
        await asyncio.sleep(1.25)

    assert beats(scenario) == [1.0, "thaw", 5.5, 6.5]


def test_freeze_that_ends_before_a_heartbeat_is_due_changes_nothing() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(0.25)
        heartbeat.freeze()
        await asyncio.sleep(0.5)
        heartbeat.thaw()
        await asyncio.sleep(1.5)

    assert beats(scenario) == [1.0, 2.0]


def test_stopped_heartbeat_stays_silent_even_if_one_is_overdue() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(2.5)
        heartbeat.freeze()
        await asyncio.sleep(1.0)
        heartbeat.stop()
        heartbeat.thaw()
        await asyncio.sleep(10.0)
        heartbeat.freeze()
        heartbeat.thaw()
        await asyncio.sleep(10.0)

    assert beats(scenario) == [1.0, 2.0]


def test_heartbeat_stopped_between_two_stays_silent() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.stop()
        await asyncio.sleep(10.0)

    assert beats(scenario) == [1.0]


def test_heartbeat_stopped_and_restarted_at_once_uses_the_new_interval_only() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.stop()
        heartbeat.start(2.0)
        await asyncio.sleep(5.0)

    assert beats(scenario) == [1.0, 3.5, 5.5]


def test_restarted_heartbeat_drops_the_overdue_one() -> None:
    async def scenario(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        heartbeat.freeze()
        await asyncio.sleep(1.5)
        heartbeat.stop()
        heartbeat.start(2.0)
        heartbeat.thaw()
        await asyncio.sleep(5.0)

    assert beats(scenario) == [3.5, 5.5]
