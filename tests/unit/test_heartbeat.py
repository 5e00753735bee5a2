"""Heartbeats of a simulated worker: their times, after a freeze, and after a stop and a start."""

import asyncio
from collections.abc import Callable, Coroutine

from spotlight.sim.heartbeat import Heartbeat
from spotlight.sim.virtual_loop import run_virtually

Story = Callable[[Heartbeat, list[object]], Coroutine[None, None, None]]


def beats(story: Story) -> list[object]:
    """The times of all beats, and what else the story notes, in order."""

    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        noted: list[object] = []
        await story(Heartbeat(lambda: noted.append(loop.time())), noted)
        return noted

    return run_virtually(main())


def test_beat_comes_after_all_that_is_due_at_its_instant() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(0.5)
        asyncio.get_running_loop().call_at(1.0, noted.append, "set later for the same instant")
        await asyncio.sleep(1.0)

    assert beats(story) == ["set later for the same instant", 1.0]


def test_beats_that_a_freeze_kept_back_come_as_one_at_the_thaw_and_the_next_a_distance_later() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.freeze()
        await asyncio.sleep(4.0)
        noted.append("thaw")
        heartbeat.thaw()
        await asyncio.sleep(1.25)

    assert beats(story) == [1.0, "thaw", 5.5, 6.5]


def test_freeze_that_ends_before_a_beat_is_due_changes_nothing() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(0.25)
        heartbeat.freeze()
        await asyncio.sleep(0.5)
        heartbeat.thaw()
        await asyncio.sleep(1.5)

    assert beats(story) == [1.0, 2.0]


def test_stopped_heart_beats_no_more_even_if_it_owes_one() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
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

    assert beats(story) == [1.0, 2.0]


def test_heart_stopped_while_it_rests_beats_no_more() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.stop()
        await asyncio.sleep(10.0)

    assert beats(story) == [1.0]


def test_heart_stopped_and_started_in_one_turn_beats_anew_and_alone() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        await asyncio.sleep(1.5)
        heartbeat.stop()
        heartbeat.start(2.0)
        await asyncio.sleep(5.0)

    assert beats(story) == [1.0, 3.5, 5.5]


def test_heart_that_owes_a_beat_and_is_started_anew_owes_nothing() -> None:
    async def story(heartbeat: Heartbeat, noted: list[object]) -> None:
        heartbeat.start(1.0)
        heartbeat.freeze()
        await asyncio.sleep(1.5)
        heartbeat.stop()
        heartbeat.start(2.0)
        heartbeat.thaw()
        await asyncio.sleep(5.0)

    assert beats(story) == [3.5, 5.5]
