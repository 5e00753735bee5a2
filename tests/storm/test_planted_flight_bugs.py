"""Each bug planted here into the recovery of flights is caught by the storm of a seed in a small range."""

from collections.abc import Iterator
from typing import Any

import pytest
from storm_bugs import Bugs

from spotlight import wiring
from spotlight.control import recovery
from spotlight.control.flights import Flights
from spotlight.control.ledger.book import Book
from spotlight.control.scheduler.booking import Booking
from spotlight.sim.storage import SimStorage

BUGS = Bugs()
caught_by = BUGS.caught_by


@caught_by(1)
def flights_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Every unfinished sample starts over."""
    patch.setattr(wiring, "recover", lambda *_: {})


@caught_by(3)
def commits_of_the_live_attempt_ignored(patch: pytest.MonkeyPatch) -> None:
    """A sample continues from the step at which its last attempt began."""
    limit = Book.resume_limit

    def earlier(self: Any, request: Any) -> Any:
        found = limit(self, request)
        return found and found._replace(attempt=None)

    patch.setattr(Book, "resume_limit", earlier)


@caught_by(3)
def damaged_part_continued(patch: pytest.MonkeyPatch) -> None:
    """The seals of stored parts are not compared."""
    patch.setattr(SimStorage, "is_intact", lambda self, ref: True)


@caught_by(1)
def flight_that_was_given_up_comes_back(patch: pytest.MonkeyPatch) -> None:
    """The newest part in the store counts, whatever the journal says."""
    limit = Book.resume_limit

    def newest(self: Any, request: Any) -> Any:
        found = limit(self, request)
        return found and found._replace(step=1 << 30, origin=0)

    patch.setattr(Book, "resume_limit", newest)


@caught_by(117)
def parts_joined_by_their_steps(patch: pytest.MonkeyPatch) -> None:
    """A part is put on any part of the step that it builds on, also on that of another attempt."""

    def by_step(heads: Any, parts: Any, is_intact: Any) -> Iterator[Any]:
        of_step = {part.step: part for part in sorted(parts, key=lambda part: -part.attempt)}
        for head in sorted(heads, key=lambda part: part.step, reverse=True):
            chain = [head]
            while chain[0].since in of_step:
                chain.insert(0, of_step[chain[0].since])
            if not chain[0].since and all(is_intact(part.ref) for part in chain):
                yield tuple(chain)

    patch.setattr(recovery, "_whole", by_step)


@caught_by(58)
def only_the_newest_part_recovered(patch: pytest.MonkeyPatch) -> None:
    recover = Flights.recover
    patch.setattr(Flights, "recover", lambda self, request, flight: recover(self, request, flight[-1:]))


@caught_by(1)
def unneeded_parts_kept_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """The store fills with parts of earlier lives."""
    flights, release = SimStorage.flights, SimStorage.release

    def first(self: Any) -> Any:
        self.forgets = True
        return flights(self)

    def forgetful(self: Any, refs: Any) -> None:
        if getattr(self, "forgets", False):
            self.forgets = False
        else:
            release(self, refs)

    patch.setattr(SimStorage, "flights", first)
    patch.setattr(SimStorage, "release", forgetful)


@caught_by(1)
def recovered_step_not_scheduled(patch: pytest.MonkeyPatch) -> None:
    """The flight is there, but the sample is leased at its first step."""
    add = Booking.add
    patch.setattr(Booking, "add", lambda self, request, step=0: add(self, request))


@pytest.mark.parametrize("name", BUGS)
def test_bug_planted_in_the_recovery_of_flights_is_caught_by_some_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BUGS.caught(name, monkeypatch)
