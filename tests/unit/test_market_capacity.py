"""When stand-ins at the on-demand price are rented for missing spot nodes, and when they are released."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.market.capacity import Capacity, StandInChange, Supply
from spotlight.core.errors import ConfigError


def capacity(wanted: int = 8, fallback_s: float | None = 600) -> Capacity:
    return Capacity(wanted=wanted, fallback_s=fallback_s)


def test_no_stand_in_is_rented_while_all_spot_nodes_are_up():
    policy = capacity()
    assert policy.decide(8, (), now=0) == StandInChange()
    assert policy.decide(8, (), now=1e6) == StandInChange()
    assert policy.state(1e6) is Supply.ENOUGH
    assert policy.wake_at(1e6) is None


def test_stand_ins_are_rented_when_the_bound_has_passed_and_not_before():
    policy = capacity()
    assert policy.decide(2, (), now=100) == StandInChange()
    assert policy.state(100) is Supply.WAITING
    assert policy.wake_at(100) == 700
    assert policy.decide(2, (), now=699) == StandInChange()
    assert policy.decide(2, (), now=700) == StandInChange(rent=tuple(f"stand-in-{number}" for number in range(1, 7)))
    assert policy.state(700) is Supply.STANDING_IN


def test_stand_ins_are_released_as_spot_returns():
    policy = capacity(wanted=3, fallback_s=60)
    policy.decide(0, (), now=0)
    rented = policy.decide(0, (), now=60).rent
    assert rented == ("stand-in-1", "stand-in-2", "stand-in-3")
    assert policy.decide(1, rented, now=90) == StandInChange(give_back=("stand-in-3",))
    assert policy.decide(3, rented[:2], now=95) == StandInChange(give_back=("stand-in-2", "stand-in-1"))
    assert policy.state(95) is Supply.ENOUGH


def test_return_in_time_restarts_the_bound():
    policy = capacity(wanted=2, fallback_s=60)
    policy.decide(0, (), now=0)
    policy.decide(2, (), now=59)
    assert policy.decide(0, (), now=60) == StandInChange()
    assert policy.wake_at(60) == 120


def test_node_that_comes_and_goes_does_not_reset_the_bound_of_nodes_that_never_came():
    policy = capacity(wanted=8, fallback_s=600)
    for minute in range(10):
        assert policy.decide(5 + minute % 2, (), now=minute * 60.0) == StandInChange()
    # Two nodes have been away all along; the third came and went.
    assert policy.decide(5, (), now=600).rent == ("stand-in-1", "stand-in-2")


def test_lost_stand_in_is_replaced_by_its_name():
    policy = capacity(wanted=3, fallback_s=0)
    assert policy.decide(0, ("stand-in-1", "stand-in-3"), now=0).rent == ("stand-in-2",)


def test_without_a_bound_no_stand_in_is_ever_rented():
    policy = capacity(fallback_s=None)
    assert policy.decide(0, (), now=0) == StandInChange()
    assert policy.decide(0, (), now=1e9) == StandInChange()
    assert policy.wake_at(1e9) is None


def test_impossible_bound_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="after -1 s"):
        capacity(fallback_s=-1)


@settings(max_examples=200)
@given(
    st.integers(0, 8),
    st.floats(0, 50),
    st.lists(st.tuples(st.floats(0, 40), st.integers(0, 8)), min_size=1, max_size=40),
)
def test_spot_and_stand_ins_never_exceed_what_is_wanted_and_shortages_end_in_time(wanted, fallback_s, market):
    policy = capacity(wanted, fallback_s)
    rented: set[str] = set()
    now, history = 0.0, []
    for after, spot in market:
        now += after
        spot = min(spot, wanted)
        order = policy.decide(spot, rented, now)
        assert not order.rent or not order.give_back
        assert not set(order.rent) & rented
        assert set(order.give_back) <= rented
        rented = (rented | set(order.rent)) - set(order.give_back)
        history.append((now, spot))
        assert spot + len(rented) <= wanted
        # The count has not exceeded `most` during the bound that ends now, so the rest are missing for too long.
        if now >= fallback_s:
            before = [count for at, count in history if at < now - fallback_s]
            recent = [count for at, count in history if at >= now - fallback_s]
            most = max([*before[-1:], *recent]) if before else None
            if most is not None:
                assert len(rented) >= wanted - most
        later = policy.wake_at(now)
        assert later is None or later > now
    assert not policy.decide(wanted, rented, now).rent
    assert policy.state(now) is Supply.ENOUGH
