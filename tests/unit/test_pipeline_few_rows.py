"""The lower bound by remaining rows, against a search through all schedules of small cases."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf

import pytest

from benchmarks.pipeline.few_rows import Iteration, least_end_s

TRAINED = (-1, -1)
"""Marks a slot that trains, in place of its rows."""
CASE = Iteration(
    step_s=(3.0, 4.0, 5.0, 8.0),
    decode_s=0.0,
    rollers=1,
    trainers=1,
    speed=1.0,
    fetch_s=0.0,
    adopt_s=0.0,
    group=2,
    steps=2,
    left_s=(4.0, 8.0),
)


@dataclass(frozen=True)
class State:
    """State of a small cluster: what each slot does and for how long, and what waits."""

    slots: tuple[tuple[float, tuple[tuple[int, int], ...]], ...]
    """Per slot: seconds left, and rows as (group, steps left)."""
    waiting: tuple[tuple[int, int], ...]
    trained: frozenset[int]


def least_searched_s(work: Iteration) -> float:
    """The end of the last training in the best of all schedules: any rows on any slot for one step at a time."""
    train_s, groups, trainer = work.left_s[0], work.groups, work.rollers

    def complete(state: State) -> set[int]:
        open_ = {group for group, _ in state.waiting} | {group for _, rows in state.slots for group, _ in rows}
        return set(range(groups)) - open_ - state.trained

    def choices(state: State, slot: int) -> Iterator[State]:
        kinds = sorted(set(state.waiting))
        for counts in product(*(range(state.waiting.count(kind) + 1) for kind in kinds)):
            rows = tuple(kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count))
            if 0 < len(rows) <= len(work.step_s):
                left = list(state.waiting)
                for row in rows:
                    left.remove(row)
                ended = sum(steps == 1 for _, steps in rows)
                speed = 1.0 if slot == trainer else work.speed
                seconds = (work.step_s[len(rows) - 1] + ended * work.decode_s) / speed
                yield replace(state, slots=_with(state.slots, slot, (seconds, rows)), waiting=tuple(left))
        for group in sorted(complete(state)) if slot == trainer else ():
            slots = _with(state.slots, slot, (train_s, (TRAINED,)))
            yield replace(state, slots=slots, trained=state.trained | {group})

    def passed(state: State) -> tuple[float, State]:
        seconds = min(left for left, _ in state.slots if left > 0)
        slots, waiting = [], list(state.waiting)
        for left, rows in state.slots:
            if left > seconds + 1e-9:
                slots.append((left - seconds, rows))
                continue
            slots.append((0.0, ()))
            waiting += [(group, steps - 1) for group, steps in rows if steps > 1]
        return seconds, replace(state, slots=tuple(slots), waiting=tuple(sorted(waiting)))

    @cache
    def best_s(state: State, first: int) -> float:
        """Least seconds from this state, if slots before `first` wait until something changes."""
        if len(state.trained) == groups and not any(left for left, _ in state.slots):
            return 0.0
        found = inf
        for slot in range(first, len(state.slots)):
            if state.slots[slot][0] == 0:
                found = min([found, *(best_s(after, slot + 1) for after in choices(state, slot))])
        if any(left for left, _ in state.slots):
            seconds, after = passed(state)
            found = min(found, seconds + best_s(after, 0))
        return found

    rows = tuple((group, work.steps) for group in range(groups) for _ in range(work.group))
    slots = (*[(work.fetch_s, ())] * work.rollers, (work.adopt_s, ()))
    return best_s(State(slots, rows, frozenset()), 0)


def _with(slots: tuple, place: int, slot: tuple) -> tuple:
    return (*slots[:place], slot, *slots[place + 1 :])


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        replace(CASE, left_s=(1.0, 2.0)),
        replace(CASE, fetch_s=5.0, adopt_s=1.0),
        replace(CASE, step_s=(4.0, 4.0, 4.0, 4.0), left_s=(3.0, 6.0)),
        replace(CASE, decode_s=1.0, left_s=(2.0, 4.0)),
        replace(CASE, speed=0.5, fetch_s=3.0, left_s=(2.0, 4.0)),
        replace(CASE, rollers=2, group=1, steps=2, fetch_s=2.0, adopt_s=1.0, left_s=(2.0, 4.0, 6.0)),
        replace(CASE, group=1, steps=3, decode_s=1.0, left_s=(5.0, 10.0, 15.0)),
    ],
)
def test_no_schedule_of_a_small_case_ends_before_the_bound(case):
    assert least_end_s(case) <= least_searched_s(case) + 1e-4


def test_bound_is_above_even_shares_where_batches_of_few_rows_are_slow():
    """Two slots draw 4 rows of 2 steps at 3 rows in 5 s, and one group of 2 rows is left when the other is trained."""
    work = replace(CASE, step_s=(4.0, 4.0, 4.0, 4.0), left_s=(3.0, 6.0))
    evenly_s = 4 * 2 / (2 * 1.0)
    assert least_end_s(work) > evenly_s + work.left_s[0] + 0.5
    assert least_end_s(work) >= 2 * 4.0 + work.left_s[1] - 1e-4, "nothing is trained before two steps of a group"


def test_bound_counts_that_rows_that_end_early_leave_later_ones_little_time():
    """Both slots could draw a row of the first group each in 6 s. While that group is trained, for 4 s, the one that
    does not train would have to take two steps of the second, which take 8 s."""
    alone_s = CASE.steps * CASE.step_s[0]
    assert alone_s + CASE.left_s[1] + 0.5 < least_end_s(CASE) <= least_searched_s(CASE) == pytest.approx(15.0)


def test_first_group_may_be_complete_before_others_hold_the_weights():
    late = replace(CASE, fetch_s=8.0, group=1, left_s=(4.0,))
    assert least_end_s(late) == pytest.approx(late.steps * late.step_s[0] + late.left_s[0])
    assert least_searched_s(late) == pytest.approx(least_end_s(late))
