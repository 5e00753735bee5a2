"""Parts of an update: for any order of completion, each group is trained on once and only when complete."""

import random

from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.pipeline.gap import Part, Parts, group_positions, groups_by_update


@st.composite
def completions(draw):
    """Groups of an update, the smallest part, and the waves in which the groups are completed."""
    groups = sorted(draw(st.sets(st.integers(0, 40), min_size=1, max_size=20)))
    order = draw(st.permutations(groups))
    cuts = sorted(draw(st.sets(st.integers(1, len(groups)))) | {len(groups)})
    waves = [order[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
    return groups, draw(st.integers(1, 6)), waves


def take_all(groups, least, waves, is_fixed):
    """Take every part; returns each with the groups complete at that time."""
    parts, complete, taken = Parts(groups, least, is_fixed), set(), []
    for wave in waves:
        complete |= set(wave)
        while (part := parts.take(complete.__contains__)) is not None:
            taken.append((part, frozenset(complete)))
    return taken


@given(completions(), st.booleans())
def test_parts_have_every_group_once_and_only_complete_ones_and_the_last_is_final(completion, is_fixed):
    groups, least, waves = completion
    taken = take_all(groups, least, waves, is_fixed)
    assert sorted(group for part, _ in taken for group in part.groups) == groups
    assert all(complete.issuperset(part.groups) for part, complete in taken)
    assert [part.is_final for part, _ in taken] == [False] * (len(taken) - 1) + [True]
    assert all(len(part.groups) % least == 0 for part, _ in taken[:-1])


@given(completions())
def test_parts_of_a_fixed_size_do_not_depend_on_the_order_of_completion(completion):
    groups, least, waves = completion
    at_once = [part for part, _ in take_all(groups, least, [groups], is_fixed=True)]
    assert [part for part, _ in take_all(groups, least, waves, is_fixed=True)] == at_once
    assert at_once == [
        Part(tuple(groups[start : start + least]), start + least >= len(groups))
        for start in range(0, len(groups), least)
    ]


@given(completions(), st.booleans())
def test_part_is_taken_as_soon_as_its_groups_are_complete(completion, is_fixed):
    groups, least, waves = completion
    parts, complete = Parts(groups, least, is_fixed), set()
    for wave in waves:
        for group in wave:
            awaited = parts.awaited()
            ready = sum(other in complete for other in awaited.groups)
            complete.add(group)
            is_due = ready + (group in awaited.groups) >= awaited.count
            part = parts.take(complete.__contains__)
            assert (part is not None) is is_due
            if part is not None:
                assert not set(part.groups) & set(parts.awaited().left)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 9), st.integers(0, 9))
def test_all_groups_of_an_update_come_before_any_of_the_next(groups, updates, seed, iteration):
    order = group_positions(groups, updates, seed, iteration)
    dealt = groups_by_update(range(groups), updates, seed, iteration)
    ends = [max(order[group] for group in update) for update in dealt]
    begins = [min(order[group] for group in update) for update in dealt]
    assert sorted(order.values()) == list(range(groups))
    assert all(end < begin for end, begin in zip(ends, begins[1:], strict=False))


def test_no_part_is_final_while_a_group_is_incomplete():
    groups = list(range(8))
    random.Random(1).shuffle(groups)
    taken = take_all(groups, 3, [[group] for group in groups if group != 4], is_fixed=False)
    assert all(4 not in part.groups and not part.is_final for part, _ in taken)
