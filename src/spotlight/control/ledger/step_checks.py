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
"""Events that say how many steps they contain."""


def known_samples(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    for request in event.requests:
        if request not in sight.history.lives:
            yield f"step {event.step} trains {request}, which was never issued", (request,)


def trained_once(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    seen = set()
    for request in event.requests:
        life = sight.history.lives.get(request)
        if request in seen:
            yield f"step {event.step} trains {request} twice", (request,)
        elif life is not None and life.state is SampleState.TRAINED:
            yield f"step {event.step} trains {request} again, after step {life.step}", (request,)
        elif life is not None and life.state is not SampleState.ACCEPTED:
            yield f"step {event.step} trains {request}, which is {life.state.value}", (request,)
        seen.add(request)


def steps_in_order(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    if event.step != len(sight.history.steps):
        yield f"step {event.step} is committed after {len(sight.history.steps)} steps", ()
    if not event.requests:
        yield f"step {event.step} trains nothing", ()


def no_step_from_nowhere(sight: CheckContext, event: Counting) -> Iterator[Problem]:
    committed = len(sight.history.steps)
    if event.step > committed:
        yield f"{type(event).__name__} claims {event.step} steps, but {committed} are committed", ()


def all_trained(sight: CheckContext, event: RunStopped) -> Iterator[Problem]:
    lost = tuple(
        request
        for request, life in sight.history.lives.items()
        if life.request.work is Work.ROLLOUT and life.state is SampleState.ACCEPTED
    )
    if event.finished and lost:
        yield f"the run is finished and {len(lost)} rollouts are neither trained nor dropped: {some(lost)}", lost


def whole_groups(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    taken = set(event.requests)
    for iteration, number in sight.history.groups_in(event):
        lives = sight.history.groups[iteration, number]
        alive = [life.request for life in lives if life.state is not SampleState.DROPPED]
        missing = tuple(request.id for request in alive if request.id not in taken)
        if missing:
            yield f"step {event.step} trains group {number} of iteration {iteration} without {some(missing)}", missing
        versions = sorted({request.sample.version for request in alive})
        if len(versions) > 1:
            ids = tuple(request.id for request in alive)
            yield f"step {event.step} trains group {number} of iteration {iteration} with versions {versions}", ids
        digests = sorted({life.made[0] for life in lives if life.made is not None and life.request.id in taken})
        if len(digests) > 1 and len(versions) == 1:
            ids = tuple(request.id for request in alive)
            yield f"step {event.step} trains group {number} of iteration {iteration} made with {digests}", ids


def only_rollouts_in_the_loss(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    for request in event.requests:
        life = sight.history.lives.get(request)
        # A preview has no life in the journal: its name is all that is known of it.
        work = life.request.work.value if life is not None else request.split("/")[0]
        if work != Work.ROLLOUT.value:
            yield f"step {event.step} trains {request}, which is no rollout", (request,)


def policy_lag_within_bound(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    newest = sight.history.newest_version
    lives = [sight.history.lives[request] for request in event.requests if request in sight.history.lives]
    stale = [life.request for life in lives if newest - life.request.sample.version > sight.bounds.max_lag]
    if stale:
        oldest = min(request.sample.version for request in stale)
        ids = tuple(request.id for request in stale)
        yield f"step {event.step} trains version {oldest} ({some(ids)}) when {newest} is the newest", ids


def versions_within_bound(sight: CheckContext, event: Issued) -> Iterator[Problem]:
    """When a sample is issued it is known already how old it will be when it is trained on."""
    for request in event.requests:
        age = request.iteration - request.sample.version
        if request.work in EXACT and not 0 <= age <= sight.bounds.max_lag:
            yield f"{request.id} is issued {age} versions behind its iteration", (request.id,)


def one_version_per_group(sight: CheckContext, event: Issued) -> Iterator[Problem]:
    drawn: dict[GroupKey, set[int]] = {}
    for request in event.requests:
        if request.work in EXACT:
            drawn.setdefault((request.iteration, request.group), set()).add(request.sample.version)
    for (iteration, group), versions in drawn.items():
        before = {life.request.sample.version for life in sight.history.groups.get((iteration, group), ())}
        if len(versions | before) > 1:
            yield f"group {group} of iteration {iteration} is issued with versions {sorted(versions | before)}", ()


def stale_share_within_bound(sight: CheckContext, event: IterationDone) -> Iterator[Problem]:
    groups = [sight.history.groups[key] for key in takewhile(sight.history.groups.__contains__, _keys(event.iteration))]
    stale = sum(lives[0].request.sample.version < event.iteration for lives in groups)
    most = most_stale(len(groups), sight.bounds.max_stale_share)
    if stale > most:
        yield f"{stale} of the {len(groups)} groups of iteration {event.iteration} are stale, and {most} may be", ()


def _keys(iteration: int) -> Iterator[GroupKey]:
    return ((iteration, group) for group in count())


def places_issued_once(sight: CheckContext, event: Issued) -> Iterator[Problem]:
    history = sight.history
    given = set()
    for iteration, group in {(r.iteration, r.group): 0 for r in event.requests if r.work is Work.ROLLOUT}:
        if group >= len(event.positions):
            if (iteration, group) not in history.places:
                yield f"group {group} of iteration {iteration} is issued without its place in the prompt order", ()
            continue
        place = event.positions[group]
        owner = history.claims.get(place, (iteration, group))
        owned = owner != (iteration, group) and history.group_alive(owner)
        if place in given or place in history.trained_places or owned:
            yield f"place {place} of the prompt order is issued again, as group {group} of iteration {iteration}", ()
        given.add(place)


def frontier_is_what_was_trained(sight: CheckContext, event: StepCommitted) -> Iterator[Problem]:
    history = sight.history
    new = {history.places[key] for key in history.groups_in(event) if key in history.places}
    trained = len(history.trained_places) + len(new - history.trained_places)
    told = event.frontier
    # Together these say: the told frontier covers exactly the trained places, and ends right after the last of them.
    covered = told.position - len(told.holes)
    holes_are_untrained = not any(hole in history.trained_places or hole in new for hole in told.holes)
    holes_are_inside = all(0 <= hole < told.position for hole in told.holes)
    ends_at_the_last = told.position == 0 or told.position - 1 in history.trained_places or told.position - 1 in new
    all_before_it = all(place < told.position for place in new)
    distinct = len(set(told.holes)) == len(told.holes)
    sound = holes_are_untrained and holes_are_inside and ends_at_the_last and all_before_it and distinct
    if not sound or covered != trained:
        problem = (
            f"step {event.step} says that the frontier is {told.position} with holes {told.holes}, but {trained} "
            f"prompts are trained, the last of them at {max(history.trained_places | new, default=-1)}"
        )
        yield problem, ()


def published_once(sight: CheckContext, event: Published) -> Iterator[Problem]:
    before = sight.history.published.get(event.weights)
    if before is not None and before.digest != event.digest and event.weights not in sight.history.undone:
        yield f"{event.weights} is published as {event.digest} after {before.digest}, and no step was undone", ()


def steps_keep_coming(sight: CheckContext, event: StepCommitted | RunStopped) -> Iterator[Problem]:
    limit = sight.bounds.max_step_gap_s
    gap = sight.at - sight.history.progress_at
    if limit is not None and gap > limit:
        yield f"no step was committed for {gap:.1f} s, and {limit:.1f} s are allowed", ()
