"""The audit of optimizer steps: doubled, unaccepted, partial, mixed, stale or foreign training, and the frontier."""

import pytest
from ledger_stories import (
    AUDIT,
    EVALUATION,
    FINISHED,
    PAIR,
    READY,
    TRAINED,
    W1,
    A,
    B,
    breaches,
    findings,
    grid,
    issued,
    made,
    published,
    started,
    stepped,
    wanted,
)

from spotlight.control.ledger.findings import Bounds, Invariant
from spotlight.core.events import (
    Checkpointed,
    Dropped,
    IterationDone,
    Leased,
    Reopened,
    Restored,
)
from spotlight.core.work import Work

# -- steps, groups, policy ---------------------------------------------------------------------------------------------


def test_double_training_is_found():
    history = [*TRAINED, stepped(1, [A, B], 1)]
    assert breaches(history) == [(Invariant.TRAINED_ONCE, 7, (A.id,)), (Invariant.TRAINED_ONCE, 7, (B.id,))]


def test_a_sample_twice_in_one_step_is_found():
    assert breaches([*READY, stepped(0, [A, B, A], 1)]) == [(Invariant.TRAINED_ONCE, 6, (A.id,))]


@pytest.mark.parametrize(
    "before",
    [
        [],
        [Leased(request=B.id, attempt=1, worker=W1)],
        [Dropped(request=B.id, reason="x")],
        [*made(B), Reopened(request=B.id, reason="x")],
    ],
    ids=["queued", "leased", "dropped", "reopened"],
)
def test_training_on_a_sample_that_is_not_accepted_is_found(before):
    history = [*PAIR, *made(A), *before, stepped(0, [A, B], 1)]
    assert breaches(history) == [(Invariant.TRAINED_ONCE, len(history) - 1, (B.id,))]


@pytest.mark.parametrize("stranger", [AUDIT, EVALUATION], ids=lambda request: request.work.value)
def test_training_on_an_audit_or_evaluation_sample_is_found(stranger):
    history = [*READY, issued([stranger], ()), *made(stranger), stepped(0, [A, B, stranger], 1)]
    assert breaches(history) == [(Invariant.POLICY, 9, (stranger.id,))]


def test_training_on_a_preview_is_found():
    preview = wanted(0, 3, work=Work.PREVIEW)
    assert (Invariant.POLICY, 6, (preview.id,)) in breaches([*READY, stepped(0, [A, B, preview], 1)])
    assert breaches([started(), issued([preview], ())]) == [(Invariant.POLICY, 1, (preview.id,))]


def test_a_group_trained_without_one_of_its_samples_is_found():
    assert breaches([*READY, stepped(0, [A], 1)]) == [(Invariant.WHOLE_GROUPS, 6, (B.id,))]


def test_a_group_of_mixed_versions_is_found():
    older, newer = wanted(0, 0, iteration=1, version=0), wanted(0, 1, iteration=1, version=1)
    history = [
        started(),
        issued([older, newer]),
        published(1, 0),
        *made(older),
        *made(newer, digest="digest-1"),
        stepped(0, [older, newer], 1, iteration=1),
    ]
    assert breaches(history) == [
        (Invariant.WHOLE_GROUPS, 1, ()),
        (Invariant.WHOLE_GROUPS, 7, (older.id, newer.id)),
    ]


def test_a_group_whose_second_half_is_issued_with_another_version_is_found():
    older, newer = wanted(0, 0, iteration=1, version=0), wanted(0, 1, iteration=1, version=1)
    history = [started(), issued([older]), issued([newer])]
    assert breaches(history) == [(Invariant.WHOLE_GROUPS, 2, ())]


def test_an_audit_drawn_with_other_weights_than_its_group_is_found():
    rollout = wanted(0, 0, iteration=1, version=0)
    audited = wanted(0, 7, iteration=1, version=1, work=Work.AUDIT)
    history = [started(), issued([rollout]), issued([audited], ())]
    assert breaches(history) == [(Invariant.WHOLE_GROUPS, 2, ())]


@pytest.mark.parametrize(
    ("iteration", "max_lag", "is_found"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True)]
)
def test_a_sample_issued_too_far_behind_its_iteration_is_found(iteration, max_lag, is_found):
    old = wanted(0, 0, iteration=iteration, version=0)
    found = breaches([started(), issued([old])], Bounds(max_lag=max_lag))
    assert found == ([(Invariant.POLICY, 1, (old.id,))] if is_found else [])


@pytest.mark.parametrize(("share", "is_found"), [(0.5, True), (0.67, False)])
def test_more_stale_groups_than_the_share_are_found_when_the_iteration_is_done(share, is_found):
    groups = [wanted(group, 0, iteration=1, version=int(group == 2)) for group in range(3)]
    done = IterationDone(iteration=1, rollout_s=1.0, train_s=1.0, reward=0.5)
    history = [started(), issued(groups, (0, 1, 2)), done]
    assert breaches(history, Bounds(max_stale_share=share)) == ([(Invariant.POLICY, 2, ())] if is_found else [])


def test_a_group_of_one_version_that_was_published_twice_with_other_bits_is_found():
    history = [
        started(),
        issued([A, B]),
        *made(A),
        Restored(step=0, reason="the gang died"),
        published(0, 0, digest="other bits"),
        *made(B, digest="other bits"),
        stepped(0, [A, B], 1),
    ]
    assert breaches(history)[-1] == (Invariant.WHOLE_GROUPS, 8, (A.id, B.id))


@pytest.mark.parametrize(("newest", "max_lag", "found"), [(1, 1, False), (2, 1, True), (1, 0, True), (0, 0, False)])
def test_a_policy_lag_beyond_the_bound_is_found(newest, max_lag, found):
    history = [*READY, *[published(version, 0) for version in range(1, newest + 1)], stepped(0, [A, B], 1)]
    expected = [(Invariant.POLICY, len(history) - 1, (A.id, B.id))] if found else []
    assert breaches(history, Bounds(max_lag=max_lag)) == expected


def test_versions_of_undone_steps_do_not_count_as_newer():
    history = [*TRAINED, published(1, 1), Restored(step=0, reason="x"), stepped(0, [A, B], 1)]
    assert findings(history, Bounds(max_lag=0)) == ()


@pytest.mark.parametrize("step", [0, 2])
def test_a_step_out_of_order_is_found(step):
    other = grid(1, 1, iteration=1)
    history = [*TRAINED, issued(other, [1]), *made(other[0]), stepped(step, other, 2, iteration=1)]
    assert breaches(history) == [(Invariant.TRAINED_ONCE, 10, ())]


def test_a_step_repeated_after_a_restore_is_in_order():
    assert findings([*TRAINED, Restored(step=0, reason="gang died"), stepped(0, [A, B], 1), FINISHED]) == ()


@pytest.mark.parametrize(
    "event",
    [Restored(step=1, reason="x"), Checkpointed(step=1, path="x"), published(1, 1)],
    ids=lambda event: type(event).__name__,
)
def test_steps_that_were_never_committed_are_found(event):
    assert breaches([*READY, event]) == [(Invariant.TRAINED_ONCE, 6, ())]


def test_a_step_that_trains_nothing_is_found():
    assert breaches([*PAIR, stepped(0, [], 0)]) == [(Invariant.TRAINED_ONCE, 2, ())]


# -- frontier ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "holes"), [(0, ()), (2, ()), (1, (0,)), (2, (1,)), (3, (1, 2)), (2, (0, 0)), (2, (-1,))]
)
def test_a_wrong_frontier_is_found(position, holes):
    assert breaches([*READY, stepped(0, [A, B], position, holes)]) == [(Invariant.FRONTIER, 6, ())]


def test_a_frontier_that_ran_ahead_with_what_was_issued_is_found():
    later = wanted(1, 0)
    history = [started(), issued([A, later], [0, 1]), *made(A), stepped(0, [A], 2)]
    assert breaches(history) == [(Invariant.FRONTIER, 4, ())]


def test_a_prompt_issued_again_while_it_is_under_way_or_trained_is_found():
    again = wanted(0, 0, iteration=1)
    assert breaches([*PAIR, issued([again], [0])]) == [(Invariant.FRONTIER, 2, ())]
    assert breaches([*TRAINED, issued([again], [0])]) == [(Invariant.FRONTIER, 7, ())]


def test_a_prompt_whose_group_was_dropped_may_be_issued_again():
    gone = [Dropped(request=request.id, reason="unreadable prompt") for request in (A, B)]
    assert findings([*PAIR, *gone, issued([wanted(0, 0, iteration=1)], [0])]) == ()


def test_rollouts_without_a_place_in_the_prompt_order_are_found():
    assert breaches([started(), issued([A, B], ())]) == [(Invariant.FRONTIER, 1, ())]
