"""Flights: at most one whole flight per sample, the newest, and only of samples that are kept."""

import msgspec
from blob_stories import StoredFlights

from spotlight.control.flights import Flights
from spotlight.control.recovery import StoredPart
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.types import NodeId
from spotlight.core.work import RequestId

ONE, OTHER = RequestId("rollout/0/0/1"), RequestId("rollout/0/0/2")


def test_late_commit_of_an_older_flight_changes_nothing() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 4, b"four")
    flights.keep(ONE, 2, b"two")
    assert flights.at(ONE, 4) == b"four"
    assert flights.at(ONE, 2) is None


def test_sample_that_starts_over_begins_with_no_flight() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 4, b"four")
    flights.forget(ONE)
    assert flights.at(ONE, 4) is None
    flights.keep(ONE, 2, b"two")
    assert flights.at(ONE, 2) == b"two"


def test_flights_that_are_not_kept_are_forgotten() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 1, b"one")
    flights.keep(OTHER, 1, b"other")
    flights.keep_only(lambda request: request == OTHER)
    assert (len(flights), flights.at(OTHER, 1)) == (1, b"other")


def test_parts_that_build_on_one_another_are_handed_out_as_one_flight_without_those_that_were_overtaken() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 2, b"two,")
    flights.keep(ONE, 4, b"four,", since=2)
    flights.keep(ONE, 6, b"six,", since=4)
    flights.keep(ONE, 8, b"eight", since=4)
    assert flights.at(ONE, 8) == b"two,four,eight"


def test_part_whose_base_was_lost_is_refused_and_the_whole_flight_before_stays() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 2, b"two")
    assert not flights.fits(ONE, since=4)
    assert not flights.fits(OTHER, since=2)
    assert flights.fits(ONE, since=2)
    assert flights.at(ONE, 2) == b"two"


def test_part_that_comes_twice_or_late_changes_nothing() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 2, b"two,")
    flights.keep(ONE, 4, b"four,", since=2)
    for _ in range(2):
        flights.keep(ONE, 8, b"eight", since=4)
        flights.keep(ONE, 6, b"six", since=4)
        flights.keep(ONE, 4, b"four,", since=2)
        flights.keep(ONE, 2, b"two,")
    assert flights.at(ONE, 8) == b"two,four,eight"


def test_whole_flight_replaces_all_parts() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 2, b"two")
    flights.keep(ONE, 4, b"four", since=2)
    flights.keep(ONE, 5, b"all five")
    assert flights.at(ONE, 5) == b"all five"
    assert not flights.fits(ONE, since=4)


def test_late_commit_of_a_part_that_a_restart_recovered_does_not_release_it() -> None:
    """Its reference is another one than the restarted controller read from the file, but of the same place."""
    released: list[BlobRef] = []
    flights = Flights(released.extend)
    ref = BlobRef(BlobKind.FLIGHT, "flights/spot-1.1-0", "seal", 6, offset=12, number=3)
    read = msgspec.structs.replace(ref, is_last=True)
    flights.recover(ONE, (StoredPart(ONE, 1, 4, 0, "", "weights", read, NodeId("spot-1.1")),))
    flights.refuse(ONE, 4, ref)
    flights.keep(ONE, 4, ref)
    assert released == []
    flights.refuse(ONE, 4, msgspec.structs.replace(ref, offset=18))
    assert len(released) == 1


def test_bytes_that_no_flight_needs_are_released_and_all_others_are_there() -> None:
    flights = StoredFlights()
    flights.keep(ONE, 2, b"two,")
    flights.keep(ONE, 4, b"four,", since=2)
    flights.keep(ONE, 6, b"six,", since=4)
    flights.keep(ONE, 8, b"eight", since=4)
    flights.keep(OTHER, 1, b"other")
    assert sorted(flights.store.bytes.values()) == [b"eight", b"four,", b"other", b"two,"]
    flights.keep(ONE, 5, b"late", since=4)
    assert b"late" not in flights.store.bytes.values()
    flights.forget(ONE)
    assert list(flights.store.bytes.values()) == [b"other"]
