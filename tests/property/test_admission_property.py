"""Stale groups admitted while an iteration trains: never more than the share, in the order of need, each once."""

from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.pipeline.gap import group_positions
from spotlight.control.pipeline.staleness import Admission, GroupState, most_stale

ORDERS = st.integers(1, 12).flatmap(lambda count: st.permutations(range(count)))
SHARES = st.floats(0.01, 1.0)
IDLENESS = st.lists(st.booleans(), max_size=30)


def in_state(admission: Admission, order: list[int], state: GroupState) -> list[int]:
    return [group for group in order if admission.state(group) is state]


@given(order=ORDERS, share=SHARES, idle=IDLENESS, is_fixed=st.booleans())
def test_admitted_groups_are_the_first_needed_each_once_and_never_more_than_the_share(order, share, idle, is_fixed):
    admission = Admission(order, share, is_fixed)
    admitted = [group for each in idle for group in admission.admit(each)]
    assert admitted == order[: len(admitted)]
    assert len(admitted) <= share * len(order) + 1e-6
    assert in_state(admission, order, GroupState.STALE) == admitted
    if not is_fixed:
        assert len(admitted) == min(sum(idle), most_stale(len(order), share))


@given(order=ORDERS, share=SHARES, idle=IDLENESS, is_fixed=st.booleans())
def test_nothing_is_admitted_once_the_new_weights_are_within_reach(order, share, idle, is_fixed):
    admission = Admission(order, share, is_fixed)
    before = [group for each in idle for group in admission.admit(each)]
    admission.end()
    assert not admission.has_room
    assert admission.admit(True) == []
    assert in_state(admission, order, GroupState.STALE) == before
    assert in_state(admission, order, GroupState.FRESH) == order[len(before) :]


@given(order=ORDERS, share=SHARES, is_idle=st.booleans())
def test_a_fixed_number_does_not_depend_on_idle_workers(order, share, is_idle):
    admission = Admission(order, share, is_fixed=True)
    assert admission.admit(is_idle) == order[: most_stale(len(order), share)]
    assert not admission.has_room


@given(order=ORDERS, share=SHARES, before=st.integers(0, 12), is_fixed=st.booleans())
def test_restart_continues_after_the_groups_admitted_before_and_stays_within_the_share(order, share, before, is_fixed):
    known = order[: min(before, most_stale(len(order), share))]
    admission = Admission(order, share, is_fixed, admitted=known)
    later = [group for _ in order for group in admission.admit(True)]
    assert [*known, *later] == order[: most_stale(len(order), share)]


@given(groups=st.integers(1, 12), updates=st.integers(1, 3), share=SHARES, iteration=st.integers(0, 5))
def test_groups_of_the_first_update_are_stale_before_any_of_the_second(groups, updates, share, iteration):
    needed = group_positions(groups, updates, 0, iteration)
    order = sorted(needed, key=needed.__getitem__)
    admission = Admission(order, share, is_fixed=True)
    admitted = admission.admit(False)
    assert sorted(needed[group] for group in admitted) == list(range(len(admitted)))


def test_shares_that_are_whole_but_for_rounding_are_whole():
    assert [most_stale(10, share) for share in (0.1, 0.3, 0.7, 1.0)] == [1, 3, 7, 10]
    assert most_stale(3, 0.5) == 1
    assert most_stale(1, 0.99) == 0
