"""A bound of every schedule in which trainers help and train together, each an equal share of every group: late in an
iteration few rows are left, and few rows make small batches.

Let E be the end of the last optimizer step, counted from publication, and let the groups be numbered as they are
completed. When the k-th is complete at most k - 1 are trained, so it is complete no later than d_k = E - (seconds in
which the others, from the k-th on, are trained). Hence, of the first k groups, at any time after d_j at most k - j are
not complete, and no more than the rows of these can be in flight. A slot with b rows makes r(b) = b / (seconds of a
step of b rows) row-steps a second; let r^ be the least concave function above r. By concavity, m slots with n rows in
flight make at most m r^(n / m), however the rows are dealt out, mixed, begun in phases or handed over. So, for every k,

    steps x rows of k groups  <=  integral from 0 to d_k of (what the slots can make with the rows that are left)

where those that fetch count from when they hold the weights, trainers from when they took them up, and trainers for no
longer than E less their training, whenever that helps most. Where all slots are alike, decoding takes time of theirs
as well: m r^(n / m) is concave in m, so a slot-second less costs at least its derivative r^(x) - x r^'(x), x = n / m,
with all slots, which is the smaller the fewer rows are left; the j-th group's pictures are decoded by d_j, so the cost
is least when each group's are as late as that. The least E for which all k hold is the bound. A search through all
schedules of small cases finds none below it (tests/unit/test_pipeline_few_rows.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

ROUNDING = 1e-9
CLOSE_S = 1e-6


@dataclass(frozen=True)
class Iteration:
    """What an iteration consists of, in seconds and rows."""

    step_s: tuple[float, ...]
    """Of a batch of one row, two, and so on."""
    decode_s: float
    """Of one picture, at least."""
    rollers: int
    trainers: int
    speed: float
    """Of one that rolls out, where a trainer's is 1."""
    fetch_s: float
    adopt_s: float
    group: int
    """Samples of a group."""
    steps: int
    left_s: tuple[float, ...]
    """In which the last one, two, ... groups to be completed are trained, optimizer steps included."""

    def __post_init__(self) -> None:
        if self.group % self.trainers:
            raise ValueError(f"{self.trainers} trainers have no equal shares of a group of {self.group}")

    @property
    def groups(self) -> int:
        return len(self.left_s)

    def due_s(self, end_s: float, number: int) -> float:
        """When so many groups are complete at the latest."""
        return end_s - self.left_s[self.groups - number]

    @cached_property
    def _hull(self) -> list[tuple[float, float]]:
        """Corners of r^: rows, and row-steps per second of one slot."""
        hull: list[tuple[float, float]] = []
        best = 0.0
        for rows, seconds in enumerate((1.0, *self.step_s)):
            best = max(best, rows / seconds)
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], (rows, best)):
                hull.pop()
            hull.append((rows, best))
        return hull

    def rate(self, rows: float) -> float:
        """Row-steps per second of one slot as fast as a trainer, at most."""
        for before, after in pairwise(self._hull):
            if rows <= after[0]:
                return before[1] + _slope(before, after) * (rows - before[0])
        return self._hull[-1][1]

    def worth(self, rows: int) -> float:
        """Row-steps that a slot-second more makes at least, with so many rows in flight; 0 where that is not known."""
        each = rows / (self.rollers + self.trainers)
        if self.speed != 1.0 or each >= self._hull[-1][0]:
            return 0.0 if self.speed != 1.0 else self._hull[-1][1]
        (before, after) = next(corners for corners in pairwise(self._hull) if each < corners[1][0])
        return before[1] - _slope(before, after) * before[0]


@cache
def _team_rate(work: Iteration, rollers: int, trainers: int, rows: int) -> float:
    """Row-steps per second of these, with so many rows in flight, at most."""
    if not rollers or not trainers:
        slots, speed = (rollers, work.speed) if rollers else (trainers, 1.0)
        return slots * speed * work.rate(rows / slots) if slots else 0.0
    return max(
        rollers * work.speed * work.rate(each / rollers) + trainers * work.rate((rows - each) / trainers)
        for each in range(rows + 1)
    )


def _slope(before: tuple[float, float], after: tuple[float, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def least_end_s(work: Iteration) -> float:
    """From publication to the last optimizer step."""
    low, high = work.left_s[-1], 2 * work.left_s[-1] + 1.0
    while not _fits(work, high):
        high *= 2
    while high - low > CLOSE_S:
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(work, middle) else (middle, high)
    return low


def _fits(work: Iteration, end_s: float) -> bool:
    return all(_is_drawn(work, end_s, number) for number in range(1, work.groups + 1))


def _is_drawn(work: Iteration, end_s: float, number: int) -> bool:
    """Whether so many groups could be complete when they have to."""
    dues = [work.due_s(end_s, each) for each in range(1, number + 1)]
    if dues[-1] <= 0:
        return False
    stretches = _stretches(work, dues)
    made = sum(each.alone * each.seconds for each in stretches)
    helping_s = max(0.0, end_s - work.adopt_s - work.left_s[-1])
    for stretch in sorted(stretches, key=lambda each: each.alone - each.helped):
        made += (stretch.helped - stretch.alone) * min(stretch.seconds, helping_s)
        helping_s -= min(stretch.seconds, helping_s)
    decoding = sum(work.worth(work.group * each) for each in range(1, number + 1))
    made -= work.group * work.decode_s * decoding
    return made * (1 + ROUNDING) >= work.group * number * work.steps


@dataclass(frozen=True)
class _Stretch:
    """Of time, in which nobody comes and no group is due: row-steps per second with and without trainers."""

    seconds: float
    alone: float
    helped: float


def _stretches(work: Iteration, dues: Sequence[float]) -> list[_Stretch]:
    moments = sorted({0.0, work.adopt_s, work.fetch_s, *dues})
    found = []
    for start, end in pairwise([each for each in moments if 0 <= each <= dues[-1]]):
        rows = work.group * sum(due > start for due in dues)
        rollers = work.rollers if start >= work.fetch_s else 0
        trainers = work.trainers if start >= work.adopt_s else 0
        alone = _team_rate(work, rollers, 0, rows)
        found.append(_Stretch(end - start, alone, _team_rate(work, rollers, trainers, rows)))
    return found
