"""Each bug planted here into the worker's shipped decisions is caught by the storm of a seed in a small range."""

from collections.abc import Callable
from typing import Any

import pytest
from storm_bugs import Bugs

from spotlight.control.flights import Flights
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.crew_messages import Offered
from spotlight.core.link import Link
from spotlight.node.crews import NodeCrews
from spotlight.node.loading_core import LoadingCore, OfferHeld, TakeOffered, TakeStored
from spotlight.node.worker_core import StepDone, WorkerCore

BUGS = Bugs()
caught_by = BUGS.caught_by


def _ignoring(patch: pytest.MonkeyPatch, *kinds: type) -> None:
    """Drop messages of these kinds instead of applying them."""
    apply = WorkerCore._apply

    def partly(self: Any, message: Any, blob: bytes) -> Any:
        return iter(()) if isinstance(message, kinds) else apply(self, message, blob)

    patch.setattr(WorkerCore, "_apply", partly)


@caught_by(3)
def recall_ignored(patch: pytest.MonkeyPatch) -> None:
    """A recalled sample stays where it is."""
    _ignoring(patch, m.Recall)


@caught_by(0)
def worker_goes_on_after_its_drain(patch: pytest.MonkeyPatch) -> None:
    """A worker that was fenced for silence, and is back, keeps its samples."""
    _ignoring(patch, m.Drain)


@caught_by(61)
def commit_of_a_fenced_attempt_counts(patch: pytest.MonkeyPatch) -> None:
    """After a reconnection, a commit of the attempt before the live one moves the sample."""

    def any_attempt(self: Any, worker: Any, request: Any, attempt: int) -> Any:
        ticket = self._tickets.get(request)
        return None if ticket is None or ticket.holder is None else ticket

    patch.setattr(Booking, "live", any_attempt)


@caught_by(74)
def hand_back_of_a_fenced_attempt_ends_the_live_one(patch: pytest.MonkeyPatch) -> None:
    """A hand-back that is sent again takes the sample from its next holder."""
    hand_back = Scheduler.hand_back

    def of_any_attempt(self: Any, worker: Any, request: Any, attempt: int, *rest: Any) -> bool:
        ticket = self._booking._tickets.get(request)
        if ticket is not None and ticket.holder is not None:
            worker, attempt = ticket.holder.id, ticket.attempt
        return hand_back(self, worker, request, attempt, *rest)

    patch.setattr(Scheduler, "hand_back", of_any_attempt)


@caught_by(0)
def weights_never_loaded(patch: pytest.MonkeyPatch) -> None:
    """A worker does not load what is published."""
    _ignoring(patch, m.Load)


@caught_by(0)
def hand_back_forgotten_before_training(patch: pytest.MonkeyPatch) -> None:
    """A trainer keeps its samples while it trains."""
    patch.setattr(WorkerCore, "_hand_back_all", lambda self: None)


@caught_by(0)
def commit_one_step_off(patch: pytest.MonkeyPatch) -> None:
    """A commit claims one step more than its flight has."""
    stepped = WorkerCore._stepped

    def ahead(self: Any, done: StepDone) -> None:
        stepped(self, done._replace(commits=[row._replace(step=row.step + 1) for row in done.commits]))

    patch.setattr(WorkerCore, "_stepped", ahead)


@caught_by(0)
def commit_builds_on_the_wrong_one(patch: pytest.MonkeyPatch) -> None:
    """A commit that continues another claims to be whole."""
    stepped = WorkerCore._stepped

    def whole(self: Any, done: StepDone) -> None:
        stepped(self, done._replace(commits=[row._replace(since=0) for row in done.commits]))

    patch.setattr(WorkerCore, "_stepped", whole)


@caught_by(0)
def results_lost(patch: pytest.MonkeyPatch) -> None:
    """A finished sample is not sent."""
    stepped = WorkerCore._stepped
    patch.setattr(WorkerCore, "_stepped", lambda self, done: stepped(self, done._replace(finished=())))


@caught_by(2)
def failure_not_reported(patch: pytest.MonkeyPatch) -> None:
    """A sample that the engine dropped is never mentioned."""
    stepped = WorkerCore._stepped
    patch.setattr(WorkerCore, "_stepped", lambda self, done: stepped(self, done._replace(failed=())))


@caught_by(0)
def all_rows_offered(patch: pytest.MonkeyPatch) -> None:
    """Rows that are in flight are offered too."""
    pull = WorkerCore._pull

    def more(self: Any) -> None:
        engine = self._engine
        self._engine = type("All", (), {"free_rows": engine.rows, "rows": engine.rows})()
        try:
            pull(self)
        finally:
            self._engine = engine

    patch.setattr(WorkerCore, "_pull", more)


@caught_by(4)
def discarded_previews_continued(patch: pytest.MonkeyPatch) -> None:
    """Previews that are no longer wanted take further steps."""
    _ignoring(patch, m.Discard)


@caught_by(0)
def weights_reported_as_announced(patch: pytest.MonkeyPatch) -> None:
    """A worker reports the digest that was announced instead of the one that it read back."""

    def trusting(self: Any, load: m.Load) -> Any:
        yield TakeStored(load)
        self._report_held(load.weights, load.digest)

    patch.setattr(LoadingCore, "_from_store", trusting)


@caught_by(4)
def offer_of_another_version_kept(patch: pytest.MonkeyPatch) -> None:
    """A newcomer uses an offer for whichever set it requested last, and does not compare digests."""

    def confused(self: Any, answer: Any, handles: bytes) -> Any:
        if self.requests and handles:
            _, request = self.requests.popitem()
            yield TakeOffered(request.load, handles)
            self._report_held(request.load.weights, request.load.digest)

    patch.setattr(LoadingCore, "_offered", confused)


@caught_by(1)
def own_copy_trusted(patch: pytest.MonkeyPatch) -> None:
    """A trainer applies its own copy of weights that another gang has published with other bits."""

    def trusting(self: Any, copy: Any, order: Any) -> Any:
        if (yield copy) is None:
            return False
        self._report_held(order.weights, order.digest)
        return True

    patch.setattr(LoadingCore, "_took", trusting)


@caught_by(4)
def weights_offered_that_are_not_held(patch: pytest.MonkeyPatch) -> None:
    """An agent requests weights from any neighbour, which offers them without having them any more."""

    def offered(self: Any, request: Any) -> Any:
        handles = yield OfferHeld(request.weights)
        self._send(Offered(weights=request.weights, newcomer=request.newcomer), handles)

    patch.setattr(NodeCrews, "holder", lambda self, weights, but: min(set(self._members) - {but}, default=None))
    patch.setattr(LoadingCore, "_offer", offered)


@caught_by(59)
def request_for_weights_outlives_its_set(patch: pytest.MonkeyPatch) -> None:
    """A newcomer loads a set that is no longer announced beside all others, for which there is no room."""

    def keep_only(self: Any, wanted: Any) -> None:
        for weights, _ in self._sets.held():
            if weights not in wanted:
                self._sets.drop(weights)

    patch.setattr(LoadingCore, "_keep_only", keep_only)


@caught_by(4)
def dead_member_not_reported(patch: pytest.MonkeyPatch) -> None:
    """Crews keep a member whose process is gone, and are formed with it."""
    patch.setattr(NodeCrews, "died", lambda self, worker, why: None)


@caught_by(2)
def flight_released_while_it_is_needed(patch: pytest.MonkeyPatch) -> None:
    """The part that a commit builds on is deleted."""
    keep = Flights.keep

    def wasteful(self: Any, request: Any, step: int, ref: Any, since: int = 0) -> None:
        keep(self, request, step, ref, since)
        self._release([part.ref for part in self._flights[request][:-1]])

    patch.setattr(Flights, "keep", wasteful)


@caught_by(6)
def unacknowledged_frames_forgotten(patch: pytest.MonkeyPatch) -> None:
    """After a reconnection, what was lost in transit is not sent again."""
    resume = Link.resume

    def forgetful(self: Any, received: int, now: float) -> list[Any]:
        resume(self, received, now)
        self._sent = received
        self._kept.clear()
        return []

    patch.setattr(Link, "resume", forgetful)


@caught_by(0)
def broken_connection_counted_as_silence(patch: pytest.MonkeyPatch) -> None:
    """Workers behind a connection that is down for a moment are fenced."""
    patch.setattr(Hub, "_excuse", lambda self, node, now: None)


@pytest.mark.parametrize("name", BUGS)
def test_bug_planted_in_the_worker_is_caught_by_some_seed(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("caught by", BUGS.caught(name, monkeypatch))
