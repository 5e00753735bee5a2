"""Flights: only the newest of a sample, and none that nobody wants."""

from spotlight.control.flights import Flights
from spotlight.core.work import RequestId

ONE, OTHER = RequestId("rollout/0/0/1"), RequestId("rollout/0/0/2")


def test_late_word_of_an_older_flight_changes_nothing() -> None:
    flights = Flights()
    flights.keep(ONE, 4, b"four")
    flights.keep(ONE, 2, b"two")
    assert flights.at(ONE, 4) == b"four"
    assert flights.at(ONE, 2) is None


def test_sample_that_starts_over_begins_with_no_flight() -> None:
    flights = Flights()
    flights.keep(ONE, 4, b"four")
    flights.forget(ONE)
    assert flights.at(ONE, 4) is None
    flights.keep(ONE, 2, b"two")
    assert flights.at(ONE, 2) == b"two"


def test_flights_that_nobody_wants_are_forgotten() -> None:
    flights = Flights()
    flights.keep(ONE, 1, b"one")
    flights.keep(OTHER, 1, b"other")
    flights.keep_only(lambda request: request == OTHER)
    assert (len(flights), flights.at(OTHER, 1)) == (1, b"other")
