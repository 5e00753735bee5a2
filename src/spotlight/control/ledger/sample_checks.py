"""Invariants of samples, leases, results and workers, one function each.

A check receives an event and the history before it, and yields problems. No check uses the Ledger, whose decisions
are under audit (tests/unit/test_audit*.py provoke every finding).
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
    Reopened,
    RunStopped,
    Worked,
)
from spotlight.core.types import NodeId
from spotlight.core.work import ReleaseReason, Work

SampleEvent: TypeAlias = Leased | Released | Accepted | Dropped | Reopened

CLOCK_SLACK_S = 1.0
"""Tolerance in seconds, plus 1 %, for spans, which use the worker's own clock: rounding and delays add up."""

STATES_BEFORE: dict[type[object], frozenset[SampleState]] = {
    # QUEUED and LEASED both pass here: the fence checks whether the attempt is live.
    Leased: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Released: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Accepted: frozenset({SampleState.QUEUED, SampleState.LEASED}),
    Dropped: frozenset({SampleState.QUEUED, SampleState.LEASED, SampleState.ACCEPTED}),
    Reopened: frozenset({SampleState.ACCEPTED}),
}


def issued_once(context: CheckContext, event: Issued) -> Iterator[Problem]:
    seen = set()
    for request in event.requests:
        if request.id in context.history.samples or request.id in seen:
            yield f"{request.id} is issued again", (request.id,)
        seen.add(request.id)


def known_sample(context: CheckContext, event: SampleEvent) -> Iterator[Problem]:
    if event.request not in context.history.samples:
        yield f"{type(event).__name__} names {event.request}, which was never issued", (event.request,)


def dropped_for_a_reason(context: CheckContext, event: Dropped) -> Iterator[Problem]:
    if not event.reason:
        yield f"{event.request} is dropped without a reason", (event.request,)


def nothing_left_to_make(context: CheckContext, event: RunStopped) -> Iterator[Problem]:
    waiting = (SampleState.QUEUED, SampleState.LEASED)
    left = tuple(request for request, sample in context.history.samples.items() if sample.state in waiting)
    if event.finished and left:
        yield f"the run is finished and {len(left)} samples are still to be made: {some(left)}", left


def one_live_lease(context: CheckContext, event: Leased) -> Iterator[Problem]:
    sample = context.history.samples.get(event.request)
    if sample is None:
        return
    if sample.state is SampleState.LEASED:
        problem = (
            f"{event.request} is leased to {event.worker} while attempt {sample.attempt} of {sample.worker} is live"
        )
        yield problem, (event.request,)
    if event.attempt != sample.attempt + 1:
        yield f"{event.request} is leased as attempt {event.attempt} after {sample.attempt}", (event.request,)
    if event.step > sample.kept:
        problem = f"{event.request} resumes at step {event.step}, but only {sample.kept} steps were handed over"
        yield problem, (event.request,)


def only_the_live_attempt(context: CheckContext, event: Accepted | Released) -> Iterator[Problem]:
    sample = context.history.samples.get(event.request)
    act = "accepted from" if isinstance(event, Accepted) else "released by"
    if sample is None or sample.state not in (SampleState.LEASED, SampleState.QUEUED):
        return
    if sample.state is SampleState.QUEUED:
        yield f"{event.request} is {act} attempt {event.attempt}, but no attempt is live", (event.request,)
    elif event.attempt != sample.attempt:
        yield f"{event.request} is {act} attempt {event.attempt}, but {sample.attempt} is live", (event.request,)
    elif isinstance(event, Accepted) and event.worker != sample.worker:
        yield f"{event.request} is accepted from {event.worker}, but {sample.worker} holds it", (event.request,)


def drawn_edges(context: CheckContext, event: SampleEvent) -> Iterator[Problem]:
    sample = context.history.samples.get(event.request)
    if sample is not None and sample.state not in STATES_BEFORE[type(event)]:
        yield f"{type(event).__name__} for {event.request}, which is {sample.state.value}", (event.request,)


def no_previews_issued(context: CheckContext, event: Issued) -> Iterator[Problem]:
    for request in event.requests:
        if request.work is Work.PREVIEW:
            yield f"{request.id} is issued like a sample, but a preview only ranks its seed", (request.id,)


def same_latent(context: CheckContext, event: Accepted) -> Iterator[Problem]:
    sample = context.history.samples.get(event.request)
    if sample is None or sample.made is None or not context.bounds.bit_exact:
        return
    weights, payload = sample.made
    if weights == event.digest and None not in (payload, event.payload_digest) and payload != event.payload_digest:
        problem = f"{event.request} was {payload} and is {event.payload_digest} when made again from the same weights"
        yield problem, (event.request,)


def published_weights(context: CheckContext, event: Accepted) -> Iterator[Problem]:
    sample = context.history.samples.get(event.request)
    if sample is None:
        return
    weights = sample.request.weights
    expected = context.history.digest_of(weights)
    if expected is None:
        yield f"{event.request} is accepted, but {weights} was never published", (event.request,)
    elif event.digest != expected:
        problem = f"{event.request} is made with {event.digest}, but {weights} was published as {expected}"
        yield problem, (event.request,)


def leased_to_live_worker(context: CheckContext, event: Leased) -> Iterator[Problem]:
    deadline = context.history.deadlines.get(event.worker)
    if event.worker in context.history.lost:
        yield f"{event.request} is leased to {event.worker}, which was lost before", (event.request,)
    elif deadline is not None and context.at > deadline:
        late = context.at - deadline
        yield f"{event.request} is leased to {event.worker} {late:.1f} s after its deadline", (event.request,)


def lost_workers_hold_nothing(context: CheckContext, event: IterationDone | RunStopped) -> Iterator[Problem]:
    held = tuple(request for request, sample in context.history.leased.items() if sample.worker in context.history.lost)
    if held:
        yield f"workers that were lost still hold {some(held)}", held


def time_adds_up(context: CheckContext, event: Worked) -> Iterator[Problem]:
    if event.end < event.start or event.end > context.at + CLOCK_SLACK_S:
        yield f"{event.worker} worked from {event.start:.3f} to {event.end:.3f} s, reported at {context.at:.3f} s", ()
        return
    span = context.history.spans.get(event.worker)
    if span is None:
        return
    elapsed = max(span.end, event.end) - min(span.start, event.start)
    busy = span.busy + event.end - event.start
    was_over = span.busy > (span.end - span.start) * 1.01 + CLOCK_SLACK_S
    if busy > elapsed * 1.01 + CLOCK_SLACK_S and not was_over:
        yield f"{event.worker} was busy for {busy:.1f} s within {elapsed:.1f} s", ()


def attempts_within_limit(context: CheckContext, event: Leased) -> Iterator[Problem]:
    if event.attempt == context.bounds.max_attempts + 1:
        yield f"{event.request} is leased for the {event.attempt}th time", (event.request,)


def redone_within_limit(context: CheckContext, event: Released) -> Iterator[Problem]:
    limit = context.bounds.commit_every
    preempted = event.reason in (ReleaseReason.LOST, ReleaseReason.SILENT, ReleaseReason.HANDED_BACK)
    sample = context.history.samples.get(event.request)
    # A commit of another machine counts when its bytes have arrived; the worker takes steps meanwhile.
    is_far = sample is not None and NodeId((sample.worker or "").partition("/")[0]) in context.history.far
    if limit is not None and preempted and not is_far and event.redone > limit:
        yield f"{event.request} redoes {event.redone} steps, but commits are {limit} steps apart", (event.request,)
