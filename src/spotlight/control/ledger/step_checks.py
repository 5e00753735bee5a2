"""Invariants of optimizer steps, weights and the frontier, one function each; see `sample_checks.py`."""

from collections.abc import Iterator
from itertools import count, takewhile
from typing import TypeAlias

from spotlight.control.ledger.findings import CheckContext, Problem, some
from spotlight.control.ledger.history import GroupKey
from spotlight.control.ledger.states import SampleState
from spotlight.control.pipeline.staleness import most_stale
from spotlight.core.events import (
    Checkpointed,
    Issued,
    IterationDone,
    Published,
    Restored,
    RunStopped,
    StepCommitted,
)
from spotlight.core.work import Work

EXACT = (Work.ROLLOUT, Work.AUDIT)
Counting: TypeAlias = Restored | Checkpointed | Published
"""Events with a number of optimizer steps."""


def known_samples(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    for request in event.requests:
        if request not in context.history.samples:
            yield f"step {event.step} trains {request}, which was never issued", (request,)


def trained_once(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    seen = set()
    for request in event.requests:
        sample = context.history.samples.get(request)
        if request in seen:
            yield f"step {event.step} trains {request} twice", (request,)
        elif sample is not None and sample.state is SampleState.TRAINED:
            yield f"step {event.step} trains {request} again, after step {sample.step}", (request,)
        elif sample is not None and sample.state is not SampleState.ACCEPTED:
            yield f"step {event.step} trains {request}, which is {sample.state.value}", (request,)
        seen.add(request)


def steps_in_order(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    if event.step != len(context.history.steps):
        yield f"step {event.step} is committed after {len(context.history.steps)} steps", ()
    if not event.requests:
        yield f"step {event.step} trains nothing", ()


def steps_are_committed(context: CheckContext, event: Counting) -> Iterator[Problem]:
    committed = len(context.history.steps)
    if event.step > committed:
        yield f"{type(event).__name__} claims {event.step} steps, but {committed} are committed", ()


def all_trained(context: CheckContext, event: RunStopped) -> Iterator[Problem]:
    lost = tuple(
        request
        for request, sample in context.history.samples.items()
        if sample.request.work is Work.ROLLOUT and sample.state is SampleState.ACCEPTED
    )
    if event.finished and lost:
        yield f"the run is finished and {len(lost)} rollouts are neither trained nor dropped: {some(lost)}", lost


def whole_groups(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    taken = set(event.requests)
    for iteration, number in context.history.groups_in(event):
        samples = context.history.groups[iteration, number]
        alive = [sample.request for sample in samples if sample.state is not SampleState.DROPPED]
        missing = tuple(request.id for request in alive if request.id not in taken)
        if missing:
            yield f"step {event.step} trains group {number} of iteration {iteration} without {some(missing)}", missing
        versions = sorted({request.sample.version for request in alive})
        if len(versions) > 1:
            ids = tuple(request.id for request in alive)
            yield f"step {event.step} trains group {number} of iteration {iteration} with versions {versions}", ids
        digests = sorted(
            {sample.made[0] for sample in samples if sample.made is not None and sample.request.id in taken}
        )
        if len(digests) > 1 and len(versions) == 1:
            ids = tuple(request.id for request in alive)
            yield f"step {event.step} trains group {number} of iteration {iteration} made with {digests}", ids


def only_rollouts_in_the_loss(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    for request in event.requests:
        sample = context.history.samples.get(request)
        # A preview is not issued in the journal: only its id is known.
        work = sample.request.work.value if sample is not None else request.split("/")[0]
        if work != Work.ROLLOUT.value:
            yield f"step {event.step} trains {request}, which is not a rollout", (request,)


def policy_lag_within_bound(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    newest = context.history.newest_version
    samples = [context.history.samples[request] for request in event.requests if request in context.history.samples]
    stale = [sample.request for sample in samples if newest - sample.request.sample.version > context.bounds.max_lag]
    if stale:
        oldest = min(request.sample.version for request in stale)
        ids = tuple(request.id for request in stale)
        yield f"step {event.step} trains version {oldest} ({some(ids)}) when {newest} is the newest", ids


def versions_within_bound(context: CheckContext, event: Issued) -> Iterator[Problem]:
    """Check the lag at issue time: a sample's iteration and version are fixed then."""
    for request in event.requests:
        age = request.iteration - request.sample.version
        if request.work in EXACT and not 0 <= age <= context.bounds.max_lag:
            yield f"{request.id} is issued {age} versions behind its iteration", (request.id,)


def one_version_per_group(context: CheckContext, event: Issued) -> Iterator[Problem]:
    drawn: dict[GroupKey, set[int]] = {}
    for request in event.requests:
        if request.work in EXACT:
            drawn.setdefault((request.iteration, request.group), set()).add(request.sample.version)
    for (iteration, group), versions in drawn.items():
        before = {sample.request.sample.version for sample in context.history.groups.get((iteration, group), ())}
        if len(versions | before) > 1:
            yield f"group {group} of iteration {iteration} is issued with versions {sorted(versions | before)}", ()


def stale_share_within_bound(context: CheckContext, event: IterationDone) -> Iterator[Problem]:
    groups = [
        context.history.groups[key] for key in takewhile(context.history.groups.__contains__, _keys(event.iteration))
    ]
    stale = sum(samples[0].request.sample.version < event.iteration for samples in groups)
    most = most_stale(len(groups), context.bounds.max_stale_share)
    if stale > most:
        yield f"{stale} of the {len(groups)} groups of iteration {event.iteration} are stale, {most} are allowed", ()


def _keys(iteration: int) -> Iterator[GroupKey]:
    return ((iteration, group) for group in count())


def positions_issued_once(context: CheckContext, event: Issued) -> Iterator[Problem]:
    history = context.history
    given = set()
    for iteration, group in {(r.iteration, r.group): 0 for r in event.requests if r.work is Work.ROLLOUT}:
        if group >= len(event.positions):
            if (iteration, group) not in history.positions:
                yield f"group {group} of iteration {iteration} is issued without a position in the prompt order", ()
            continue
        position = event.positions[group]
        owner = history.claims.get(position, (iteration, group))
        owned = owner != (iteration, group) and history.group_alive(owner)
        if position in given or position in history.trained_positions or owned:
            yield (
                f"position {position} of the prompt order is issued again, as group {group} of iteration {iteration}",
                (),
            )
        given.add(position)


def frontier_is_what_was_trained(context: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    history = context.history
    new = {history.positions[key] for key in history.groups_in(event) if key in history.positions}
    trained = len(history.trained_positions) + len(new - history.trained_positions)
    frontier = event.frontier
    # Together: the frontier covers exactly the trained positions, and ends right after the last of them.
    covered = frontier.position - len(frontier.holes)
    holes_are_untrained = not any(hole in history.trained_positions or hole in new for hole in frontier.holes)
    holes_are_inside = all(0 <= hole < frontier.position for hole in frontier.holes)
    ends_at_the_last = (
        frontier.position == 0 or frontier.position - 1 in history.trained_positions or frontier.position - 1 in new
    )
    all_before_it = all(position < frontier.position for position in new)
    distinct = len(set(frontier.holes)) == len(frontier.holes)
    consistent = holes_are_untrained and holes_are_inside and ends_at_the_last and all_before_it and distinct
    if not consistent or covered != trained:
        problem = (
            f"step {event.step} records the frontier {frontier.position} with holes {frontier.holes}, but {trained} "
            f"prompts are trained, the last of them at {max(history.trained_positions | new, default=-1)}"
        )
        yield problem, ()


def published_once(context: CheckContext, event: Published) -> Iterator[Problem]:
    before = context.history.published.get(event.weights)
    if before is not None and before.digest != event.digest and event.weights not in context.history.undone:
        yield f"{event.weights} is published as {event.digest} after {before.digest}, but no step was undone", ()


def steps_keep_coming(context: CheckContext, event: StepCommitted | RunStopped) -> Iterator[Problem]:
    limit = context.bounds.max_step_gap_s
    gap = context.at - context.history.progress_at
    if limit is not None and gap > limit:
        yield f"no step was committed for {gap:.1f} s; {limit:.1f} s are allowed", ()
