"""Rollouts one version ahead of training: after any crash groups keep their version and the weights are the same."""

from functools import cache
from typing import Any

import pytest
from story import Story, When

from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Checkpointed,
    Compared,
    ExplorationClosed,
    Issued,
    IterationDone,
    Leased,
    Published,
    Restored,
    RunResumed,
    Selected,
    StepCommitted,
)
from spotlight.core.work import Request, Work
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo
from spotlight.surface.cli.report import verdict

LONG: dict[str, Any] = {"rollout": {"prompts": 4, "group_size": 3, "steps": 6}}
AHEAD: dict[str, Any] = {**LONG, "pipeline": {"asynchrony": True}}
SLOW_TRAINING = Tempo(train_s=8.0)
PLAIN: dict[str, Any] = {"explore": {"enabled": "off"}, "deterministic": False}


@cache
def undisturbed(gap: bool = False) -> str:
    with Story(**LONG, pipeline={"asynchrony": True, "gap": gap}) as story:
        story.end()
        return story.theta


def rollouts(story: Story, iteration: int) -> list[Request]:
    return [
        request
        for event in story.recorded(Issued)
        for request in event.requests
        if request.work is Work.ROLLOUT and request.iteration == iteration
    ]


def stale_groups(story: Story, iteration: int) -> set[int]:
    return {request.group for request in rollouts(story, iteration) if request.sample.version == iteration - 1}


def holders_of_stale(story: Story, iteration: int) -> dict[str, str]:
    """Holders of unfinished samples of the version before, by request."""
    stale = {request.id for request in rollouts(story, iteration) if request.sample.version == iteration - 1}
    done = {event.request for event in story.recorded(Accepted)}
    return {e.request: e.worker for e in story.recorded(Leased) if e.request in stale and e.request not in done}


def place(story: Story, kind: type[AnyEvent], **fields: object) -> int:
    """Index of the first such event."""
    return next(
        number
        for number, event in enumerate(story.events)
        if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
    )


def first_stale(story: Story, iteration: int) -> int:
    return next(
        number
        for number, event in enumerate(story.events)
        if isinstance(event, Issued)
        and any(r.iteration == iteration and r.sample.version < iteration for r in event.requests)
    )


# -- admission ---------------------------------------------------------------------------------------------------------


def test_half_of_the_groups_are_begun_with_the_old_weights_while_the_iteration_trains_and_all_are_trained() -> None:
    with Story(**AHEAD, tempo=SLOW_TRAINING) as story:
        report = story.end()
        assert report.finished
        assert stale_groups(story, 0) == set()
        assert [len(stale_groups(story, iteration)) for iteration in (1, 2)] == [2, 2]
        assert first_stale(story, 1) < place(story, StepCommitted, iteration=0)
        trained = {request for event in story.recorded(StepCommitted) for request in event.requests}
        assert trained == {request.id for iteration in range(3) for request in rollouts(story, iteration)}


def test_each_group_is_issued_once_with_one_version() -> None:
    with Story(**AHEAD) as story:
        story.end()
        assert stale_groups(story, 1)
        for iteration in range(3):
            issued = rollouts(story, iteration)
            assert len(issued) == len({request.id for request in issued}) == 12
            for group in range(4):
                assert len({request.sample.version for request in issued if request.group == group}) == 1


def test_audit_of_a_run_allows_the_stale_share_of_its_settings() -> None:
    with Story(**AHEAD) as story:
        story.end()
        story.folder.write_config(story.config.model_dump(mode="json"))
        assert verdict(story.folder).clean
        for pipeline in ({"asynchrony": False}, {"asynchrony": True, "stale_share": 0.25}):
            story.folder.write_config({**story.config.model_dump(mode="json"), "pipeline": pipeline})
            assert not verdict(story.folder).clean


def test_slots_without_work_begin_the_next_iteration_while_others_draw_the_last_of_this_one() -> None:
    """Two groups of three rows for two slots, and a third that only one of them draws."""
    settings: dict[str, Any] = {"rollout": {"prompts": 3, "group_size": 3, "steps": 6}, **PLAIN}
    pipeline = {"asynchrony": True, "tag": False}
    with Story(2, rows=3, **settings, pipeline=pipeline) as story:
        story.end()
        assert first_stale(story, 2) < place(story, Compared, iteration=1)


def test_previews_are_drawn_before_stale_groups_are_begun() -> None:
    with Story(**AHEAD) as story:
        story.end()
        for iteration in (1, 2):
            assert place(story, Compared, iteration=iteration - 1) < first_stale(story, iteration)


def test_no_group_is_stale_without_asynchrony() -> None:
    with Story(**LONG, tempo=SLOW_TRAINING) as story:
        story.end()
        assert not any(stale_groups(story, iteration) for iteration in range(3))


def test_groups_are_admitted_only_as_slots_run_out_of_work_and_the_rest_is_drawn_with_new_weights() -> None:
    """One spot slot of three rows, 2.4 s per group: training of 4 s has room for two groups of eight."""
    settings: dict[str, Any] = {
        **PLAIN,
        "rollout": {"prompts": 8, "group_size": 3, "steps": 6},
        "pipeline": {"asynchrony": True, "stale_share": 1.0, "tag": False},
    }
    with Story(1, rows=3, tempo=Tempo(train_s=4.0, score_s=0.001, latency_s=0.0001, load_s=0.0), **settings) as story:
        story.end()
        assert [len(stale_groups(story, iteration)) for iteration in (1, 2)] == [2, 2]


def test_iteration_is_shorter_by_the_groups_rolled_out_ahead() -> None:
    """Two of the four groups of 2.4 s are rolled out while the iteration before trains."""

    def seconds(asynchrony: bool) -> float:
        settings: dict[str, Any] = {**PLAIN, **LONG, "pipeline": {"asynchrony": asynchrony, "tag": False}}
        tempo = Tempo(train_s=6.0, score_s=0.001, latency_s=0.0001, load_s=0.0)
        with Story(1, rows=3, tempo=tempo, **settings) as story:
            story.end()
            done = story.recorded(IterationDone, iteration=1)[0]
            return done.rollout_s + done.train_s

    assert seconds(False) == pytest.approx(4 * 2.4 + 6.0, rel=0.02)
    assert seconds(True) == pytest.approx(2 * 2.4 + 6.0, rel=0.02)


def test_with_gap_and_stale_groups_an_iteration_takes_as_long_as_its_training() -> None:
    """Units of 2.4 s and of 3 s: only the first iteration has to wait for its first group."""
    settings: dict[str, Any] = {**PLAIN, **LONG, "algorithm": {"kind": "nft", "advantage": {"std": "group"}}}
    tempo = Tempo(train_s=4 * 3.0, score_s=0.001, latency_s=0.0001, load_s=0.0)
    pipeline = {"asynchrony": True, "gap": True, "tag": False}
    with Story(1, rows=3, tempo=tempo, **settings, pipeline=pipeline) as story:
        story.end()
        first, second, _ = [done.rollout_s + done.train_s for done in story.recorded(IterationDone)]
        assert first == pytest.approx(2.4 + 4 * 3.0, rel=0.02)
        assert second == pytest.approx(4 * 3.0, rel=0.02)


def test_run_without_spot_nodes_admits_no_stale_groups_and_finishes() -> None:
    with Story(0, **AHEAD | PLAIN) as story:
        story.end()
        assert not any(stale_groups(story, iteration) for iteration in range(3))


# -- beside exploration ------------------------------------------------------------------------------------------------


def test_stale_groups_have_the_seeds_selected_by_their_previews() -> None:
    with Story(**AHEAD, tempo=SLOW_TRAINING) as story:
        story.end()
        for iteration in (1, 2):
            (selected,) = story.recorded(Selected, iteration=iteration)
            assert place(story, Selected, iteration=iteration) < first_stale(story, iteration)
            for group in stale_groups(story, iteration):
                drawn = [r.sample.seed for r in rollouts(story, iteration) if r.group == group]
                assert sorted(drawn) == sorted(selected.seeds[group])
            assert len(story.recorded(ExplorationClosed, iteration=iteration)) == 1


def test_no_group_is_stale_when_training_ends_before_the_previews() -> None:
    settings: dict[str, Any] = {
        **LONG,
        "explore": {"enabled": "on", "seeds": 64, "steps": 2, "plan": "fixed"},
        "pipeline": {"asynchrony": True, "tag": False},
        "deterministic": False,
    }
    with Story(1, tempo=Tempo(train_s=1.0), **settings) as story:
        story.end()
        assert all(event.discarded for event in story.recorded(ExplorationClosed))
        assert not any(stale_groups(story, iteration) for iteration in range(3))


# -- crashes -----------------------------------------------------------------------------------------------------------


def is_ahead(story: Story, iteration: int = 1) -> bool:
    return bool(holders_of_stale(story, iteration))


@pytest.mark.parametrize("gap", [False, True])
def test_gang_lost_while_stale_groups_are_in_flight_trains_them_with_the_version_they_have(gap: bool) -> None:
    with Story(**LONG, pipeline={"asynchrony": True, "gap": gap}) as story:
        story.until(lambda: is_ahead(story))
        story.kill("reserved-1")
        story.end()
        assert len(stale_groups(story, 1)) == 2
        assert story.theta == undisturbed(gap)


def test_gang_lost_after_a_checkpoint_takes_steps_again_from_stale_samples_that_are_kept() -> None:
    with Story(**AHEAD, iterations=4) as story:
        story.until(lambda: story.recorded(Checkpointed, step=2) and len(story.recorded(StepCommitted)) == 3)
        story.kill("reserved-1")
        story.end()
        made = [event.request for event in story.recorded(Accepted)]
        assert [event.step for event in story.recorded(Restored)] == [2]
        assert len(made) == len(set(made))
        taken, again = story.recorded(StepCommitted, step=2)
        stale = {request.id for request in rollouts(story, 2) if request.sample.version == 1}
        assert stale
        assert stale < set(taken.requests) == set(again.requests)


def test_stale_flight_of_a_lost_spot_node_is_finished_elsewhere_with_the_old_weights() -> None:
    slow = Tempo(step_s=2.0, train_s=0.5)
    with Story(**AHEAD, tempo=slow) as story:
        story.until(lambda: story.recorded(Published, step=1) and is_ahead(story))
        held = holders_of_stale(story, 1)
        for name in sorted({worker.partition(".")[0] for worker in held.values() if worker.startswith("spot")}):
            story.kill_for_good(name)
        story.end()
        made = {event.request: event for event in story.recorded(Accepted)}
        (old,) = [event for event in story.recorded(Published) if str(event.weights) == "behaviour-0"][-1:]
        assert held
        assert {made[request].digest for request in held} == {old.digest}
        assert story.theta == undisturbed()


def test_spot_node_that_joins_after_publication_receives_the_old_weights_too() -> None:
    slow = Tempo(step_s=2.0, train_s=0.5)
    with Story(1, **AHEAD, tempo=slow) as story:
        story.until(lambda: story.recorded(Published, step=1) and is_ahead(story))
        story.kill("spot-1")
        before = len(story.events)
        story.end()
        stale = {request.id for request in rollouts(story, 1) if request.sample.version == 0}
        later = [event for event in story.events[before:] if isinstance(event, Leased) and event.request in stale]
        assert any(event.worker.startswith("spot-1.2") for event in later)


@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("record", [Issued, Selected, StepCommitted, Published, IterationDone, Accepted])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_controller_dies_around_a_record_while_groups_are_ahead(record: type[AnyEvent], when: When, gap: bool) -> None:
    with Story(**LONG, pipeline={"asynchrony": True, "gap": gap}) as story:
        story.until(lambda: is_ahead(story))
        story.crash_controller(when, record)
        story.end()
        assert story.lives == 2
        assert [len(stale_groups(story, iteration)) for iteration in (1, 2)] == [2, 2]
        assert story.theta == undisturbed(gap)


def test_controller_restarted_between_admission_and_issue_decides_nothing_twice() -> None:
    """One life of the controller issues the stale groups, the next one the fresh groups."""
    with Story(**AHEAD, tempo=SLOW_TRAINING) as story:
        story.until(lambda: is_ahead(story))
        story.crash_controller(When.AFTER, IterationDone)
        story.end()
        assert first_stale(story, 1) < place(story, RunResumed) < place(story, Published, step=2)
        assert len(rollouts(story, 1)) == len({request.id for request in rollouts(story, 1)}) == 12
        assert story.theta == undisturbed()


def test_audits_that_a_crash_left_out_after_stale_rollouts_are_drawn_before_the_old_weights_are_dropped() -> None:
    """The records before are of an evaluation, the first iteration and the stale rollouts of the second."""
    explore = {"enabled": "on", "seeds": 4, "steps": 2, "audit_share": 0.5}
    with Story(**AHEAD, tempo=SLOW_TRAINING, explore=explore) as story:
        story.crash_controller(When.BEFORE, Issued, number=4)
        story.until(lambda: story.lives == 2)
        assert stale_groups(story, 1)
        assert not audits(story, 1)
        story.end()
        assert {request.sample.version for request in audits(story, 1)} == {0}
        assert all(story.recorded(Accepted, request=request.id) for request in audits(story, 1))


def audits(story: Story, iteration: int) -> list[Request]:
    issued = [request for event in story.recorded(Issued) for request in event.requests]
    return [request for request in issued if request.work is Work.AUDIT and request.iteration == iteration]


def test_tensors_of_a_stale_sample_lost_with_the_controller_are_made_again_with_the_old_weights() -> None:
    with Story(**AHEAD, tempo=SLOW_TRAINING) as story:
        stale = lambda: {request.id for request in rollouts(story, 1) if request.sample.version == 0}  # noqa: E731
        story.until(lambda: [e for e in story.recorded(Accepted) if e.request in stale()])
        lost = next(event for event in story.recorded(Accepted) if event.request in stale())
        story.crash_controller(When.AFTER, IterationDone)
        story.until(lambda: story.recorded(IterationDone))
        assert lost.payload is not None
        story.storage.lose(lost.payload)
        story.invariants.damaged.add(lost.payload)
        story.end()
        again = story.recorded(Accepted, request=lost.request)
        assert [event.digest for event in again] == [lost.digest] * 2
        assert story.theta == undisturbed()


@pytest.mark.parametrize("window", [CrashPoint.STEPPED, CrashPoint.SAVED, CrashPoint.PUBLISHED])
def test_gang_dies_in_a_window_after_groups_went_ahead(window: CrashPoint) -> None:
    with Story(**AHEAD) as story:
        story.until(lambda: is_ahead(story))
        story.crash_at(window)
        story.end()
        assert story.theta == undisturbed()


def crash_with_unfinished_stale_samples(story: Story, record: type[AnyEvent]) -> None:
    """The controller dies after the record; then all published weights are lost."""
    story.crash_controller(When.AFTER, record)
    story.until(lambda: story.recorded(record))
    assert holders_of_stale(story, 1)
    story.storage.keep_weights([])


def test_old_weights_that_are_lost_before_a_checkpoint_are_published_again() -> None:
    with Story(**AHEAD, tempo=Tempo(step_s=2.0, train_s=0.5)) as story:
        crash_with_unfinished_stale_samples(story, IterationDone)
        story.end()
        assert len([event for event in story.recorded(Published) if str(event.weights) == "behaviour-0"]) == 2
        assert story.theta == undisturbed()


def test_old_weights_that_are_lost_when_the_gang_is_past_them_stop_the_run() -> None:
    output = {"checkpoint_every": 1, "journal": {"sync": "never"}}
    with Story(**AHEAD, tempo=Tempo(step_s=2.0, train_s=0.5), output=output) as story:
        crash_with_unfinished_stale_samples(story, Checkpointed)
        with pytest.raises(
            AssertionError, match=r"behaviour-0 are gone .* is past them .* put that file back and resume"
        ):
            story.end()


def test_old_weights_are_kept_until_a_checkpoint_covers_their_samples_and_no_longer() -> None:
    """When version 3 is published the newest checkpoint covers two iterations; the third has samples of version 1."""
    output = {"checkpoint_every": 1, "journal": {"sync": "never"}}
    with Story(**AHEAD, iterations=4, output=output) as story:
        story.until(lambda: story.recorded(IterationDone, iteration=2))
        assert [event.step for event in story.recorded(Checkpointed)] == [1, 2]
        kept = [path for path in sorted(story.storage.weights) if "behaviour" in path]
        assert kept == ["weights/behaviour-1", "weights/behaviour-2", "weights/behaviour-3"]
        story.end()
