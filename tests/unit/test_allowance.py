"""Stand-ins by limits: rented only where the deadline needs them and the money allows them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.market.allowance import Allowance

HOUR = 3600.0


def allowance(hours: float | None = None, dollars: float | None = None) -> Allowance:
    """Of a run that costs 72 dollars an hour with all stand-ins; the first of its 101 iterations took no time."""
    max_s = None if hours is None else hours * HOUR
    limits = Allowance(iterations=101, max_s=max_s, max_dollars=dollars, dollars_per_s=72 / HOUR)
    limits.iterated(1, 0.0, 0.0, stood_in=False)
    return limits


def given_after(limits: Allowance, seconds: float, spent: float = 0.0, stood_in: bool = False, done: int = 1) -> bool:
    limits.iterated(done + 1, (limits.ended_at or 0.0) + seconds, spent, stood_in)
    return limits.is_given


def test_nothing_is_given_before_an_iteration_was_measured():
    assert not allowance(hours=0.001).is_given


@pytest.mark.parametrize(("done", "at"), [(1, 900.0), (60, 1800.0)], ids=["slow start", "resumed"])
def test_time_before_the_first_end_of_an_iteration_in_this_life_is_no_iteration(done, at):
    """The rest takes 18 s per iteration, which meets the deadline; the time until `at` would not."""
    limits = Allowance(iterations=101, max_s=HOUR, max_dollars=None, dollars_per_s=1.0)
    limits.iterated(done, at, 0.0, stood_in=False)
    assert not limits.is_given
    limits.iterated(done + 1, at + 18, 0.0, stood_in=False)
    assert (limits.pace_s, limits.is_given) == (18, False)


def test_deadline_gives_stand_ins_only_if_the_rest_would_be_late():
    assert not given_after(allowance(hours=1.0), seconds=36)
    assert given_after(allowance(hours=1.0), seconds=37)


def test_stand_ins_stay_until_the_rest_can_do_without_them():
    limits = allowance(hours=1.0)
    assert given_after(limits, seconds=40)
    for done in range(2, 40):
        given_after(limits, seconds=20, stood_in=True, done=done)
    # 39 iterations took 800 s; the other 61 would take 2440 s without stand-ins.
    assert not limits.is_given
    assert limits.pace_s == 40


def test_money_gives_stand_ins_as_long_as_the_rest_fits_at_the_price_of_all_of_them():
    assert given_after(allowance(dollars=72.0), seconds=36, spent=0.5)
    assert not given_after(allowance(dollars=72.0), seconds=36, spent=1.0)


def test_with_two_limits_a_late_run_gets_no_stand_ins_that_it_cannot_pay():
    assert given_after(allowance(hours=1.0, dollars=100.0), seconds=40)
    assert not given_after(allowance(hours=1.0, dollars=70.0), seconds=40)
    assert not given_after(allowance(hours=2.0, dollars=100.0), seconds=40)


@given(seconds=st.lists(st.floats(1, 500), min_size=1, max_size=60), dollars=st.floats(1, 500))
def test_rest_at_the_pace_without_stand_ins_never_costs_more_than_the_limit_while_they_are_given(seconds, dollars):
    limits, spent = allowance(dollars=dollars), 0.0
    for done, each in enumerate(seconds, start=1):
        was_given = limits.is_given
        spent += each * limits.dollars_per_s * (1.0 if was_given else 0.5)
        given_after(limits, each, spent, stood_in=was_given, done=done)
        if limits.is_given:
            assert limits.pace_s is not None
            assert spent + (100 - done) * limits.pace_s * limits.dollars_per_s <= dollars
