"""Invariants of samples, leases, results and workers, one function each.

A check sees an event and the history before it, and yields what is wrong. None uses the Ledger: what the controller
believed of itself is what is being checked (tests/unit/test_audit*.py provoke every finding).
"""

from collections.abc import Iterator
from typing import TypeAlias

from spotlight.control.ledger.findings import CheckContext, Problem, some
from spotlight.control.ledger.states import SampleState
from spotlight.core.events import (
    Accepted,
    Dropped,
    Issued,
    IterationDone,
    Leased,
    Released,
    ReleaseReason,
    Reopened,
    RunStopped,
    Worked,
)
from spotlight.core.work import Work

SampleEvent: TypeAlias = Leased | Released | Accepted | Dropped | Reopened

CLOCK_SLACK_S = 1.0
"""Spans are told in the worker's own clock: rounding and delays may add up to this, and to 1 %."""

LEAVES: dict[type[object], frozenset[SampleState]] = {
    # Whether a queued sample's attempt was live is for the fence to say.
    Leased: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Released: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Accepted: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Dropped: frozenset({SampleState.QUEUED, SampleState.LEASED, SampleState.ACCEPTED}),
    Reopened: frozenset({SampleState.ACCEPTED}),
}


def issued_once(sight: CheckContext, event: Issued) -> Iterator[Problem]:
    seen = set()
    for request in event.requests:
        if request.id in sight.history.lives or request.id in seen:
            yield f"{request.id} is issued again", (request.id,)
        seen.add(request.id)


def known_sample(sight: CheckContext, event: SampleEvent) -> Iterator[Problem]:
    if event.request not in sight.history.lives:
        yield f"{type(event).__name__} names {event.request}, which was never issued", (event.request,)


def dropped_for_a_reason(sight: CheckContext, event: Dropped) -> Iterator[Problem]:
    if not event.reason:
        yield f"{event.request} is dropped without a reason", (event.request,)


def nothing_left_to_make(sight: CheckContext, event: RunStopped) -> Iterator[Problem]:
    waiting = (SampleState.QUEUED, SampleState.LEASED)
    left = tuple(request for request, life in sight.history.lives.items() if life.state in waiting)
    if event.finished and left:
        yield f"the run is finished and {len(left)} samples are still to be made: {some(left)}", left


def one_live_lease(sight: CheckContext, event: Leased) -> Iterator[Problem]:
    life = sight.history.lives.get(event.request)
    if life is None:
        return
    if life.state is SampleState.LEASED:
        problem = f"{event.request} is leased to {event.worker} while attempt {life.attempt} of {life.worker} is live"
        yield problem, (event.request,)
    if event.attempt != life.attempt + 1:
        yield f"{event.request} is leased as attempt {event.attempt} after {life.attempt}", (event.request,)
    if event.step > life.kept:
        problem = f"{event.request} goes on from step {event.step}, but only {life.kept} were handed over"
        yield problem, (event.request,)


def only_the_live_attempt(sight: CheckContext, event: Accepted | Released) -> Iterator[Problem]:
    life = sight.history.lives.get(event.request)
    act = "accepted from" if isinstance(event, Accepted) else "released by"
    if life is None or life.state not in (SampleState.LEASED, SampleState.QUEUED):
        return
    if life.state is SampleState.QUEUED:
        yield f"{event.request} is {act} attempt {event.attempt}, but no attempt is live", (event.request,)
    elif event.attempt != life.attempt:
        yield f"{event.request} is {act} attempt {event.attempt}, but {life.attempt} is live", (event.request,)
    elif isinstance(event, Accepted) and event.worker != life.worker:
        yield f"{event.request} is accepted from {event.worker}, but {life.worker} holds it", (event.request,)


def drawn_edges(sight: CheckContext, event: SampleEvent) -> Iterator[Problem]:
    life = sight.history.lives.get(event.request)
    if life is not None and life.state not in LEAVES[type(event)]:
        yield f"{type(event).__name__} for {event.request}, which is {life.state.value}", (event.request,)


def previews_stay_out(sight: CheckContext, event: Issued) -> Iterator[Problem]:
    for request in event.requests:
        if request.work is Work.PREVIEW:
            yield f"{request.id} is followed like a sample, but a preview only ranks its seed", (request.id,)


def same_latent(sight: CheckContext, event: Accepted) -> Iterator[Problem]:
    life = sight.history.lives.get(event.request)
    if life is None or life.made is None or not sight.bounds.bit_exact:
        return
    weights, payload = life.made
    if weights == event.digest and None not in (payload, event.payload_digest) and payload != event.payload_digest:
        problem = f"{event.request} was {payload} and is {event.payload_digest} when made again from the same weights"
        yield problem, (event.request,)


def published_weights(sight: CheckContext, event: Accepted) -> Iterator[Problem]:
    life = sight.history.lives.get(event.request)
    if life is None:
        return
    weights = life.request.weights
    expected = sight.history.digest_of(weights)
    if expected is None:
        yield f"{event.request} is accepted, but {weights} was never published", (event.request,)
    elif event.digest != expected:
        problem = f"{event.request} is made with {event.digest}, but {weights} was published as {expected}"
        yield problem, (event.request,)


def leased_to_who_can(sight: CheckContext, event: Leased) -> Iterator[Problem]:
    deadline = sight.history.deadlines.get(event.worker)
    if event.worker in sight.history.lost:
        yield f"{event.request} is leased to {event.worker}, which was lost before", (event.request,)
    elif deadline is not None and sight.at > deadline:
        late = sight.at - deadline
        yield f"{event.request} is leased to {event.worker} {late:.1f} s after its deadline", (event.request,)


def taken_back_from_the_lost(sight: CheckContext, event: IterationDone | RunStopped) -> Iterator[Problem]:
    held = tuple(request for request, life in sight.history.leased.items() if life.worker in sight.history.lost)
    if held:
        yield f"workers that were lost still hold {some(held)}", held


def time_adds_up(sight: CheckContext, event: Worked) -> Iterator[Problem]:
    if event.end < event.start or event.end > sight.at + CLOCK_SLACK_S:
        yield f"{event.worker} worked from {event.start:.3f} to {event.end:.3f} s, told at {sight.at:.3f} s", ()
        return
    span = sight.history.spans.get(event.worker)
    if span is None:
        return
    present = max(span.end, event.end) - min(span.start, event.start)
    busy = span.busy + event.end - event.start
    was_over = span.busy > (span.end - span.start) * 1.01 + CLOCK_SLACK_S
    if busy > present * 1.01 + CLOCK_SLACK_S and not was_over:
        yield f"{event.worker} was busy for {busy:.1f} s within {present:.1f} s", ()


def attempts_within_limit(sight: CheckContext, event: Leased) -> Iterator[Problem]:
    if event.attempt == sight.bounds.max_attempts + 1:
        yield f"{event.request} is leased for the {event.attempt}th time", (event.request,)


def redone_within_limit(sight: CheckContext, event: Released) -> Iterator[Problem]:
    limit = sight.bounds.commit_every
    preempted = event.reason in (ReleaseReason.LOST, ReleaseReason.SILENT, ReleaseReason.HANDED_BACK)
    if limit is not None and preempted and event.redone > limit:
        yield f"{event.request} redoes {event.redone} steps, but commits are {limit} steps apart", (event.request,)
