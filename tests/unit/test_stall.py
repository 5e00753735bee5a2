"""A run without progress is noted, then stopped; the bound follows from the durations seen before."""

from dataclasses import replace

import pytest

from spotlight.controller.stall import Movement, StallContext, StallWatch
from spotlight.core.errors import Stopped

ALLOWED_S = 100.0


class Watched:
    """A stall watch whose context the test chooses; ticks once a second."""

    def __init__(self) -> None:
        self.context = StallContext(signs=0, is_excused=False, allowed_s=ALLOWED_S)
        self.notes: list[str] = []
        self.now = 0.0
        self.watch = StallWatch(
            lambda: self.context,
            lambda: "3 rollouts",
            lambda source, problem: self.notes.append(problem),
            "runs/a/logs",
        )

    def sign(self) -> None:
        self.context = replace(self.context, signs=self.context.signs + 1)

    def quiet(self, seconds: int) -> Stopped | None:
        for _ in range(seconds):
            self.now += 1.0
            stopped = self.watch.tick(self.now)
            if stopped is not None:
                return stopped
        return None


@pytest.fixture
def run() -> Watched:
    watched = Watched()
    watched.watch.tick(0.0)
    return watched


def test_run_that_never_progresses_is_noted_at_half_the_bound_and_stopped_at_it(run: Watched) -> None:
    assert run.quiet(int(ALLOWED_S) - 1) is None
    (note,) = run.notes
    assert "nothing has progressed for 50 s while the run waited for 3 rollouts" in note
    stopped = run.quiet(1)
    assert stopped is not None
    assert stopped.exit_code == 4
    assert "for 100 s" in str(stopped)
    assert "runs/a/logs" in str(stopped)
    assert run.watch.state is Movement.STALLED


def test_any_sign_of_progress_restarts_the_wait(run: Watched) -> None:
    for _ in range(5):
        assert run.quiet(90) is None
        run.sign()
        assert run.quiet(1) is None
        assert run.watch.state is Movement.MOVING


def test_run_that_was_slow_before_may_be_slow_again(run: Watched) -> None:
    run.quiet(80)
    run.sign()
    run.quiet(1)
    assert run.quiet(2 * int(ALLOWED_S)) is None
    assert run.quiet(100 * int(ALLOWED_S)) is not None, "but not for ever"


def test_order_with_a_limit_of_its_own_is_no_stall_however_long(run: Watched) -> None:
    run.context = replace(run.context, is_excused=True)
    assert run.quiet(10_000) is None
    run.context = replace(run.context, is_excused=False)
    assert run.watch.since_sign_s > 9_000, "people are shown that nothing was reported"
    assert run.quiet(int(ALLOWED_S) - 1) is None, "what was waited for the order does not count"


def test_controller_that_was_itself_suspended_does_not_stop_the_run(run: Watched) -> None:
    run.now += 100 * ALLOWED_S
    assert run.watch.tick(run.now) is None
    assert run.quiet(int(ALLOWED_S) // 4) is None
    assert run.notes == []
