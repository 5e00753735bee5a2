"""A bound of every schedule in which trainers help, and train equal shares of every group together: early in an
iteration rows have to end soon, late in it few rows are left, and both make batches small.

Let the groups be numbered as they are completed, and let u be the seconds of training that are left until the end E
of the last optimizer step. When the k-th group is complete at most k - 1 are trained, so u is at least left_k then, the
seconds in which the others are trained. Cut the time from publication to E by u: t_k = left_k - left_(k+1) seconds of
training take it from left_k to left_(k+1), and before them the k-th group is complete; H_k are the seconds before in
which it was between left_(k-1) and left_k and nothing was trained, or all in which it was more than left_1. So
E = H_1 + t_1 + H_2 + t_2 + ..., and every schedule keeps:

    steps     of each group are all taken before it is complete
    slots     the row-steps of a stretch, each with the seconds of its batch divided by the batch's rows, take no more
              seconds than there are slots in it: trainers in H_k alone, and those that fetch once they hold the weights
    rows      a row is in one batch at a time, so that the row-steps of a group, each with the seconds of its whole
              batch, take no more seconds than the group has rows, times the seconds of the stretch

Decoding takes slots and rows as well. All of it is linear in the H_k and in the row-steps of each group in each stretch
by batch and kind of slot, which are allowed to be fractions, to be mixed, begun in phases and handed over at will; so
the least sum of all H_k and t_k is a bound, and a linear program finds it. A step that is cut by two stretches counts
in each with its share of time. A search through all schedules of small cases finds none below it
(tests/unit/test_pipeline_few_rows.py).

No group is complete before any slot could draw a sample. If slots that fetch take longer than trainers for that, they
are taken to hold the weights when a trainer would have drawn one, so that all of their fetch is in H_1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from scipy.optimize import linprog
from scipy.sparse import csr_array


@dataclass(frozen=True)
class Iteration:
    """Work of an iteration, in seconds and rows."""

    step_s: tuple[float, ...]
    """Seconds of a step by rows of the batch: one, two, and so on."""
    decode_s: float
    """Least seconds to decode one picture."""
    rollers: int
    trainers: int
    speed: float
    """Speed of a slot that rolls out, relative to a trainer."""
    fetch_s: float
    adopt_s: float
    group: int
    """Samples of a group."""
    steps: int
    left_s: tuple[float, ...]
    """Seconds of training for the last one, two, ... groups to be completed, optimizer steps included."""

    def __post_init__(self) -> None:
        if self.group % self.trainers:
            raise ValueError(f"{self.trainers} trainers have no equal shares of a group of {self.group}")

    @property
    def groups(self) -> int:
        return len(self.left_s)

    def trained_s(self, number: int) -> float:
        """Seconds of training between those before which this group, counted from 0, and the next one are complete."""
        after = self.groups - number - 1
        return self.left_s[after] - (self.left_s[after - 1] if after else 0.0)

    @property
    def others_from_s(self) -> float:
        """Time from which slots other than trainers can roll out; no group is complete before."""
        return min(self.fetch_s, self.adopt_s + self.steps * min(self.step_s) + self.decode_s)


class _Stretch(NamedTuple):
    """A part of an iteration: the slots that can draw in it, the groups that are not complete yet, its length."""

    first: int
    """First group that may be drawn in the stretch."""
    rollers: int
    trainers: int
    waits: int | None
    """Index of its H; None if the stretch has a given length."""
    seconds: float
    """Seconds added to that H, or the whole length if there is none."""


def least_end_s(work: Iteration) -> float:
    """Least seconds from publication to the last optimizer step."""
    program = _Program(work.groups)
    for stretch in _stretches(work):
        _draw(program, work, stretch)
    return work.left_s[-1] + program.least(work.others_from_s)


def _stretches(work: Iteration) -> Iterator[_Stretch]:
    held_s = work.others_from_s
    yield _Stretch(0, 0, work.trainers, None, max(0.0, held_s - work.adopt_s))
    yield _Stretch(0, work.rollers, work.trainers, 0, -held_s)
    for number in range(1, work.groups):
        yield _Stretch(number, work.rollers, 0, None, work.trained_s(number - 1))
        yield _Stretch(number, work.rollers, work.trainers, number, 0.0)


def _draw(program: "_Program", work: Iteration, stretch: _Stretch) -> None:
    """Add all possible work of slots in a stretch."""
    rows = [program.limit(stretch, work.group) for _ in range(stretch.first, work.groups)]
    for count, speed in ((stretch.rollers, work.speed), (stretch.trainers, 1.0)):
        if not count:
            continue
        slots = program.limit(stretch, count)
        for number in range(stretch.first, work.groups):
            row = rows[number - stretch.first]
            for batch, seconds in enumerate(work.step_s, 1):
                program.amount({slots: seconds / batch / speed, row: seconds / speed}, number, work.group * work.steps)
            if work.decode_s:
                decoded = work.groups + number
                program.amount({slots: work.decode_s / speed, row: work.decode_s / speed}, decoded, work.group)


@dataclass
class _Program:
    """A linear program: amounts of work per task, and limits of time; its first columns are the H."""

    waits: int
    columns: int = field(init=False)
    limits: list[float] = field(default_factory=list)
    needed: dict[int, float] = field(default_factory=dict)
    taken: list[tuple[int, int, float]] = field(default_factory=list)
    """Row, column and seconds of each limit."""
    tasks: list[tuple[int, int]] = field(default_factory=list)
    """Task and column of each amount."""

    def __post_init__(self) -> None:
        self.columns = self.waits

    def limit(self, stretch: _Stretch, each: int) -> int:
        """Add a limit of `each` seconds per second of the stretch; return its row."""
        row = len(self.limits)
        self.limits.append(each * stretch.seconds)
        if stretch.waits is not None:
            self.taken.append((row, stretch.waits, -float(each)))
        return row

    def amount(self, seconds: dict[int, float], task: int, needed: float) -> None:
        """Add a variable amount of a task; one unit takes these seconds of each limit."""
        self.taken += [(row, self.columns, each) for row, each in seconds.items()]
        self.tasks.append((task, self.columns))
        self.needed[task] = needed
        self.columns += 1

    def least(self, first: float) -> float:
        """The least sum of all H, of which the first is at least `first`."""
        rows, columns, values = zip(*self.taken, strict=True)
        limited = csr_array((values, (rows, columns)), shape=(len(self.limits), self.columns))
        places = {task: place for place, task in enumerate(sorted(self.needed))}
        done = [places[task] for task, _ in self.tasks], [column for _, column in self.tasks]
        needed = csr_array(([1.0] * len(self.tasks), done), shape=(len(places), self.columns))
        found = linprog(
            [1.0] * self.waits + [0.0] * (self.columns - self.waits),
            A_ub=limited,
            b_ub=self.limits,
            A_eq=needed,
            b_eq=[self.needed[task] for task in places],
            bounds=[(first, None), *[(0.0, None)] * (self.columns - 1)],
            method="highs",
        )
        if not found.success:
            raise ArithmeticError(f"no bound was found: {found.message}")
        return float(found.fun)
