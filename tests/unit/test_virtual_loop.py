"""Virtual time: timers in order, none that was cancelled, and an error if nothing can end a wait."""

import asyncio
import gc
import weakref

import pytest

from spotlight.sim.virtual_loop import NothingLeft, run_virtually


def test_timers_run_when_they_are_due_and_set_the_time():
    async def main() -> list[tuple[float, str]]:
        loop, seen = asyncio.get_running_loop(), []
        for delay, name in ((3.0, "late"), (1.0, "early"), (2.0, "between")):
            loop.call_later(delay, lambda name=name: seen.append((loop.time(), name)))
        await asyncio.sleep(86_400)
        return [*seen, (loop.time(), "end")]

    assert run_virtually(main()) == [(1.0, "early"), (2.0, "between"), (3.0, "late"), (86_400.0, "end")]


def test_cancelled_timers_never_run_whatever_their_number():
    async def main() -> list[int]:
        loop, seen = asyncio.get_running_loop(), []
        timers = [loop.call_later(1 + number % 7, seen.append, number) for number in range(1000)]
        for number, timer in enumerate(timers):
            if number % 10:
                timer.cancel()
        await asyncio.sleep(10)
        return seen

    assert sorted(run_virtually(main())) == list(range(0, 1000, 10))


def test_timer_cancelled_by_another_of_its_instant_does_not_run():
    async def main() -> list[str]:
        loop, seen = asyncio.get_running_loop(), []
        timers = [
            loop.call_later(1.0, lambda: (seen.append("first"), timers[1].cancel())),
            loop.call_later(1.0, seen.append, "second"),
        ]
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == ["first"]


def test_wait_that_no_timer_can_end_is_an_error():
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingLeft, match="nothing can ever happen"):
        run_virtually(main())


def test_exception_that_a_timer_lets_escape_is_raised_at_the_end_and_others_still_run():
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1.0, lambda: 1 / 0)
        loop.call_later(2.0, seen.append, "later")
        await asyncio.sleep(3.0)

    with pytest.raises(ZeroDivisionError):
        run_virtually(main())
    assert seen == ["later"]


class Owned:
    """An object that a run makes, in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self

    def act(self) -> None:
        pass


def test_objects_of_a_finished_run_are_freed_though_its_timers_were_never_due():
    kept: list[object] = []

    async def main() -> weakref.ref[Owned]:
        owned = Owned()
        loop = asyncio.get_running_loop()
        loop.call_later(1e9, owned.act)
        kept.append(loop)
        await asyncio.sleep(1.0)
        return weakref.ref(owned)

    usual = gc.get_threshold()
    assert run_virtually(main())() is None
    assert gc.get_threshold() == usual


def test_objects_of_a_finished_run_in_a_cycle_are_freed_before_the_next_run():
    async def main() -> weakref.ref[Owned]:
        return weakref.ref(Owned())

    gc.disable()
    try:
        assert run_virtually(main())() is None
    finally:
        gc.enable()
