"""Crews as real processes: one sample made by several workers, whichever of them die, hang, go or come meanwhile.

The bytes of the finished sample are those that one worker alone makes, and the controller accepts it once; a follower's
death costs no step, a leader's at most those since its last commit.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from crew_node import COMMIT_EVERY, Hall, Outcome
from node_world import eventually, living, marked, parent_of, zombies_of

from spotlight.core.events import Crewing, Leased, NodeLost, NoticeGiven, ReleaseReason
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind

STEPS = 14
MANY_STEPS = 120
"""Enough for workers to die, start anew and join, while the sample is still in the making."""


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def hall(runner, tmp_path_factory):
    """One for all stories, because its imports take long; no process outlives it."""
    mark = marked()
    hall = Hall(tmp_path_factory.mktemp("crews") / f"run-{os.getpid()}")
    runner.run(hall.pool.start())
    yield hall
    runner.run(hall.pool.stop())
    runner.run(eventually(lambda: not living(mark), "every process of the pool ends"))


async def alone(hall: Hall, steps: int) -> bytes:
    """What one worker makes of the sample."""
    async with hall.story(slots=1) as story:
        story.issue(steps)
        outcome = await story.outcome()
        assert not story.of(Crewing)
        return outcome.payload


@pytest.fixture(scope="module")
def expected(runner, hall) -> bytes:
    return runner.run(alone(hall, STEPS))


@pytest.fixture(scope="module")
def expected_of_many(runner, hall) -> bytes:
    return runner.run(alone(hall, MANY_STEPS))


def nothing_was_lost(outcome: Outcome, steps: int = STEPS) -> bool:
    """One worker led from the first step to the last."""
    return not outcome.releases and (outcome.accepted.attempt, outcome.accepted.steps) == (1, steps)


def leaders_were_lost(outcome: Outcome, most: int = 1) -> bool:
    """At least one and so many at most; each time the next one went on from the last commit."""
    losses = outcome.releases
    told = all(loss.reason is ReleaseReason.LOST and loss.redone <= COMMIT_EVERY for loss in losses)
    return told and 1 <= len(losses) <= most and outcome.accepted.attempt == 1 + len(losses)


@pytest.mark.parametrize("degree", [4, 3, pytest.param(2, marks=pytest.mark.slow)])
def test_crew_undisturbed_makes_the_bytes_that_one_worker_makes(runner, hall, expected, degree):
    async def story():
        async with hall.story(slots=degree) as story:
            story.at_step(1, degree, lambda: None)
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert nothing_was_lost(outcome)


def rank_is_killed(runner, hall: Hall, rank: int, step: int) -> tuple[Outcome, list[WorkerId]]:
    """The outcome, and the leaders of the crews of three that went on."""

    async def story():
        async with hall.story(slots=4) as story:
            story.at_step(step, 4, lambda: story.kill(story.crew()[rank]))
            story.issue(STEPS)
            outcome = await story.outcome()
            await story.until("the death is told", lambda: bool(story.lost()))
            assert set(story.lost().values()) == {"killed by SIGKILL"}
            survivors = [crew for told in story.of(Crewing) for crew in told.crews if len(crew) == 3]
            return outcome, [crew[0] for crew in survivors]

    return runner.run(story())


FOLLOWERS_DIE = [
    (2, 5),
    *(pytest.param(rank, step, marks=pytest.mark.slow) for rank in (1, 2, 3) for step in (1, 7, 12)),
]
LEADERS_DIE = [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 3, 7, 9, 12))]


@pytest.mark.parametrize(("rank", "step"), FOLLOWERS_DIE)
def test_follower_killed_in_mid_step_costs_no_step_and_changes_no_bit(runner, hall, expected, rank, step):
    outcome, leaders = rank_is_killed(runner, hall, rank, step)
    assert outcome.payload == expected
    assert nothing_was_lost(outcome)
    assert outcome.accepted.worker in leaders, "the others went on together, under the same leader"


@pytest.mark.parametrize("step", LEADERS_DIE)
def test_leader_killed_in_mid_step_costs_a_commit_at_most_and_changes_no_bit(runner, hall, expected, step):
    outcome, leaders = rank_is_killed(runner, hall, 0, step)
    assert outcome.payload == expected
    assert leaders_were_lost(outcome)
    assert outcome.accepted.worker in leaders, "the others went on together, under one of them"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1, 2), (2, 3), (0, 1), (0, 3)])
def test_two_ranks_killed_at_once_leave_the_others_to_go_on(runner, hall, expected, ranks):
    async def story():
        async with hall.story(slots=4) as story:
            story.at_step(4, 4, lambda: story.kill(*(story.crew()[rank] for rank in ranks)))
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert leaders_were_lost(outcome) if 0 in ranks else nothing_was_lost(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 1), (1, 0), (0, 2)])
def test_second_rank_killed_while_survivors_form_is_left_out_as_well(runner, hall, expected, first, second):
    """The loss is told when the crew is broken, and the survivors' next crew is being formed then."""

    async def story():
        async with hall.story(slots=4) as story:

            def kill_both_in_turn():
                crew, told = story.crew(), len(story.of(Crewing))
                story.when(lambda: len(story.of(Crewing)) > told, lambda: story.kill(crew[second]))
                story.kill(crew[first])

            story.at_step(4, 4, kill_both_in_turn)
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    # After the leader's death it may be the second one that has the sample next.
    assert leaders_were_lost(outcome, 2 if first == 0 else 1) if 0 in (first, second) else nothing_was_lost(outcome)


def rank_is_stopped(runner, hall: Hall, rank: int) -> tuple[Outcome, dict[WorkerId, str]]:
    """The outcome, and who died of what."""

    async def story():
        async with hall.story(slots=3) as story:
            stopped = []

            def stop():
                stopped.append(story.crew()[rank])
                story.send(signal.SIGSTOP, *stopped)

            story.at_step(5, 3, stop)
            nursery = parent_of(next(iter(story.pids.values())))
            story.issue(STEPS)
            outcome = await story.outcome()
            await story.until("the stopped one is told dead", lambda: bool(story.lost()))
            assert list(story.lost()) == stopped
            pid = story.pids[stopped[0]]
            await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the stopped process ends and is reaped")
            await eventually(lambda: not zombies_of(nursery), "the nursery reaps")
            return outcome, story.lost()

    return runner.run(story())


def test_follower_that_hangs_is_killed_at_its_deadline_and_costs_no_step(runner, hall, expected):
    outcome, deaths = rank_is_stopped(runner, hall, 1)
    assert outcome.payload == expected
    assert nothing_was_lost(outcome)
    assert all(cause.startswith("killed, because it did not") for cause in deaths.values()), deaths


@pytest.mark.slow
def test_leader_that_hangs_is_killed_and_its_sample_goes_on_from_the_last_commit(runner, hall, expected):
    outcome, _ = rank_is_stopped(runner, hall, 0)
    assert outcome.payload == expected
    assert leaders_were_lost(outcome)


@pytest.mark.slow
def test_whole_crew_killed_comes_back_and_finishes_the_sample(runner, hall, expected):
    async def story():
        async with hall.story(slots=3) as story:
            story.at_step(6, 3, lambda: story.kill(*story.crew()))
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert leaders_were_lost(outcome)
    assert outcome.releases[0].step >= 6, "what the controller had heard of is not done again"


@pytest.mark.slow
def test_notice_ends_the_crew_at_a_step_boundary_and_redoes_nothing(runner, hall, expected):
    """What the node cannot finish in time goes on elsewhere, from the very step that the crew had reached."""

    async def story():
        async with hall.story(slots=3) as story:
            node = hall.pool.nodes()[0]
            warned = asyncio.Event()
            story.at_step(4, 3, warned.set)
            story.issue(STEPS)
            await story.until("the crew is at work", warned.is_set)
            await hall.pool.warn(node, NoticeKind.IMMINENT, 2.0)
            await story.until("the notice is told", lambda: bool(story.of(NoticeGiven)))
            await story.until("the sample is handed back", lambda: not story.crews() and not story.is_held())
            await story.add_node("spot-2", 1)
            await hall.pool.kill_node(node)
            return await story.outcome(), len(story.of(NodeLost)), story.holder()

    outcome, nodes_lost, holder = runner.run(story())
    assert outcome.payload == expected
    assert outcome.redone == 0
    assert [release.reason for release in outcome.releases] == [ReleaseReason.HANDED_BACK]
    assert (nodes_lost, holder.startswith("spot-2.")) == (1, True)


@pytest.mark.slow
def test_slots_that_return_join_the_crew_in_mid_sample_and_change_no_bit(runner, hall, expected_of_many):
    async def story():
        async with hall.story(slots=4) as story:
            story.at_step(4, 4, lambda: story.kill(*story.crew()[2:]))
            story.issue(MANY_STEPS)
            return await story.outcome(), story.degrees(), len(story.of(Leased))

    outcome, degrees, leases = runner.run(story())
    assert outcome.payload == expected_of_many
    assert nothing_was_lost(outcome, MANY_STEPS)
    assert leases == 1
    assert 2 in degrees
    assert 4 in degrees[degrees.index(2) :], f"the crew of two never grew to four again: {degrees}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_random_steps_and_regroupings_change_no_bit(runner, hall, expected_of_many, seed):
    """Of members and newcomers, one or several at once, also while what was lost before is still coming back."""
    chance = random.Random(seed)

    async def story():
        async with hall.story(slots=4) as story:

            def strike():
                ready = story.ready()
                story.kill(*chance.sample(ready, min(len(ready), chance.randint(1, 3))))

            for step in chance.sample(range(1, MANY_STEPS // 2), 4):
                story.when(lambda step=step: story.step >= step, strike)
            for changes in chance.sample(range(2, 8), 2):
                story.when(lambda changes=changes: len(story.of(Crewing)) >= changes, strike)
            story.issue(MANY_STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected_of_many
    assert not outcome.releases or leaders_were_lost(outcome, most=len(outcome.releases))
