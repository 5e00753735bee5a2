"""Limits on the connections of other machines."""

import pytest

from spotlight.controller.gate import Gate, GateLimits, source_of

LIMITS = GateLimits(
    total=6, per_address=4, strangers=4, strangers_per_address=2, failures=3, window_s=10.0, noted=2, remembered=5
)


def test_strangers_of_one_address_are_limited_and_others_still_enter():
    gate = Gate(LIMITS)
    assert [gate.admits("a", 0.0) for _ in range(3)] == [True, True, False]
    assert gate.admits("b", 0.0)


def test_strangers_are_limited_in_all():
    gate = Gate(LIMITS)
    assert [gate.admits(source, 0.0) for source in "aabbc"] == [True, True, True, True, False]


def test_stranger_that_proves_itself_makes_room_for_the_next():
    gate = Gate(LIMITS)
    for _ in range(4):
        assert gate.admits("a", 0.0)
        gate.proved("a")
    assert not gate.admits("a", 0.0), "its address has its most nodes"
    gate.left("a", is_proved=True)
    assert gate.admits("a", 0.0)


def test_stranger_that_leaves_makes_room():
    gate = Gate(LIMITS)
    assert gate.admits("a", 0.0)
    assert gate.admits("a", 0.0)
    gate.left("a", is_proved=False)
    assert gate.admits("a", 0.0)


def test_address_that_fails_too_often_waits_until_its_failures_are_old():
    gate = Gate(LIMITS)
    for at in (0.0, 1.0, 2.0):
        gate.failed("a", at)
    assert not gate.admits("a", 9.9)
    assert gate.admits("b", 9.9)
    assert gate.admits("a", 10.5)


def test_failure_is_recorded_once_per_address_and_for_few_addresses():
    gate = Gate(LIMITS)
    assert [gate.failed(source, 0.0) for source in "aabbc"] == [True, False, True, False, False]


def test_what_is_kept_about_addresses_is_bounded():
    gate = Gate(LIMITS)
    for number in range(1000):
        gate.failed(str(number), float(number))
    assert len(gate._failures) == LIMITS.remembered
    assert len(gate._noted) == LIMITS.noted


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.5", "10.0.0.5"),
        ("::ffff:10.0.0.5", "10.0.0.5"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
    ],
)
def test_address_is_counted_with_its_network(host, source):
    assert source_of(host) == source
