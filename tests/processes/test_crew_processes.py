"""Crews as real processes: one sample made by several workers, some of which die, hang, leave or join meanwhile.

The finished sample has the bytes that one worker alone makes, and the controller accepts it once. A follower's death
costs no step, a leader's at most the steps since its last commit.
"""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from crew_node import COMMIT_EVERY, CrewEnvironment, Outcome
from node_world import eventually, living, marked, parent_of, zombies_of

from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.core.events import Crewing, Leased, NodeLost, NoticeGiven, Released
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason

STEPS = 14
MOST_FOLLOWERS = 3
"""Followers of a crew on all four slots of a node."""
MANY_STEPS = 120
"""Enough for workers to die, restart and join before the sample is finished."""
SHORT_NOTICE_S = SchedulerSettings().commit_s
"""A result must be sent this long before a deadline."""


@pytest.fixture(scope="module")
def runner():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def environment(runner, tmp_path_factory):
    """One environment for all tests, because its imports take long; none of its processes outlives it."""
    mark = marked()
    environment = CrewEnvironment(tmp_path_factory.mktemp("crews") / f"run-{os.getpid()}")
    runner.run(environment.pool.start())
    yield environment
    runner.run(environment.pool.stop())
    runner.run(eventually(lambda: not living(mark), "every process of the pool ends"))


async def alone(environment: CrewEnvironment, steps: int) -> bytes:
    """Payload of the sample made by one worker."""
    async with environment.story(slots=1) as story:
        story.issue(steps)
        outcome = await story.outcome()
        assert not story.of(Crewing)
        return outcome.payload


@pytest.fixture(scope="module")
def expected(runner, environment) -> bytes:
    return runner.run(alone(environment, STEPS))


@pytest.fixture(scope="module")
def expected_of_many(runner, environment) -> bytes:
    return runner.run(alone(environment, MANY_STEPS))


def has_one_leader(outcome: Outcome, steps: int = STEPS) -> bool:
    """True if one worker led from the first step to the last."""
    return not outcome.releases and (outcome.accepted.attempt, outcome.accepted.steps) == (1, steps)


def has_lost_leaders(outcome: Outcome, most: int = 1) -> bool:
    """True if 1 to `most` leaders were lost, each successor resumed from the last commit, and every other attempt ended
    untouched.

    Survivors offer their rows once the crew has ended. If the controller's tick comes between the loss and their
    offers, it reports the sample as waiting, and the agent forms the next crew for it; an offer that crossed the order
    to follow is granted the sample, and that follower hands it back at the step of its lease. A grant uses up an offer
    and a follower makes none, so each follower does so at most once.
    """
    losses = [release for release in outcome.releases if release.reason is ReleaseReason.LOST]
    others = [release for release in outcome.releases if release not in losses]
    granted = {lease.attempt: lease.step for lease in outcome.leases}
    untouched = [(ReleaseReason.HANDED_BACK, granted[other.attempt], 0) for other in others]
    return (
        1 <= len(losses) <= most
        and all(loss.redone <= COMMIT_EVERY for loss in losses)
        and [(other.reason, other.step, other.redone) for other in others] == untouched
        and len(others) <= MOST_FOLLOWERS * len(losses)
        and outcome.accepted.attempt == 1 + len(outcome.releases)
    )


@pytest.mark.parametrize("degree", [4, *(pytest.param(degree, marks=pytest.mark.slow) for degree in (2, 3))])
def test_crew_undisturbed_makes_the_bytes_that_one_worker_makes(runner, environment, expected, degree):
    async def story():
        async with environment.story(slots=degree) as story:
            story.at_step(1, degree, lambda: None)
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert has_one_leader(outcome)


def with_rank_killed(runner, environment: CrewEnvironment, rank: int, step: int) -> tuple[Outcome, list[WorkerId]]:
    """Kill one rank of four; returns the outcome and the leaders of the crews of three that continued."""

    async def story():
        async with environment.story(slots=4) as story:
            story.at_step(step, 4, lambda: story.kill(story.crew()[rank]))
            story.issue(STEPS)
            outcome = await story.outcome()
            await story.until("the death is recorded", lambda: bool(story.lost()))
            assert set(story.lost().values()) == {"killed by SIGKILL"}
            survivors = [crew for event in story.of(Crewing) for crew in event.crews if len(crew) == 3]
            return outcome, [crew[0] for crew in survivors]

    return runner.run(story())


FOLLOWERS_DIE = [
    (2, 5),
    *(pytest.param(rank, step, marks=pytest.mark.slow) for rank in (1, 2, 3) for step in (1, 7, 12)),
]
LEADERS_DIE = [5, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 3, 7, 9, 12))]


@pytest.mark.parametrize(("rank", "step"), FOLLOWERS_DIE)
def test_follower_killed_in_mid_step_costs_no_step_and_changes_no_bit(runner, environment, expected, rank, step):
    outcome, leaders = with_rank_killed(runner, environment, rank, step)
    assert outcome.payload == expected
    assert has_one_leader(outcome)
    assert outcome.accepted.worker in leaders, "the survivors continue as one crew under the same leader"


@pytest.mark.parametrize("step", LEADERS_DIE)
def test_leader_killed_in_mid_step_costs_a_commit_at_most_and_changes_no_bit(runner, environment, expected, step):
    outcome, leaders = with_rank_killed(runner, environment, 0, step)
    assert outcome.payload == expected
    assert has_lost_leaders(outcome)
    assert outcome.accepted.worker in leaders, "the survivors continue as one crew under one of them"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1, 2), (2, 3), (0, 1), (0, 3)])
def test_two_ranks_killed_at_once_leave_the_others_to_go_on(runner, environment, expected, ranks):
    async def story():
        async with environment.story(slots=4) as story:
            story.at_step(4, 4, lambda: story.kill(*(story.crew()[rank] for rank in ranks)))
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert has_lost_leaders(outcome) if 0 in ranks else has_one_leader(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 1), (1, 0), (0, 2)])
def test_second_rank_killed_while_survivors_form_is_left_out_as_well(runner, environment, expected, first, second):
    """The second kill follows the record of the broken crew, while the survivors form the next one."""

    async def story():
        async with environment.story(slots=4) as story:

            def kill_one_then_the_other():
                crew, before = story.crew(), len(story.of(Crewing))
                story.when(lambda: len(story.of(Crewing)) > before, lambda: story.kill(crew[second]))
                story.kill(crew[first])

            story.at_step(4, 4, kill_one_then_the_other)
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    # After the leader's death the second victim may be the next holder of the sample.
    assert has_lost_leaders(outcome, 2 if first == 0 else 1) if 0 in (first, second) else has_one_leader(outcome)


def with_rank_stopped(runner, environment: CrewEnvironment, rank: int) -> tuple[Outcome, dict[WorkerId, str]]:
    """Stop one rank of three with SIGSTOP; returns the outcome and the causes of the losses."""

    async def story():
        async with environment.story(slots=3) as story:
            stopped = []

            def stop():
                stopped.append(story.crew()[rank])
                story.send(signal.SIGSTOP, *stopped)

            story.at_step(5, 3, stop)
            nursery = parent_of(next(iter(story.pids.values())))
            story.issue(STEPS)
            outcome = await story.outcome()
            await story.until("the stopped worker is recorded as lost", lambda: bool(story.lost()))
            assert list(story.lost()) == stopped
            pid = story.pids[stopped[0]]
            await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the stopped process ends and is reaped")
            await eventually(lambda: not zombies_of(nursery), "the nursery reaps")
            return outcome, story.lost()

    return runner.run(story())


@pytest.mark.slow
def test_follower_that_hangs_is_killed_at_its_deadline_and_costs_no_step(runner, environment, expected):
    outcome, deaths = with_rank_stopped(runner, environment, 1)
    assert outcome.payload == expected
    assert has_one_leader(outcome)
    assert all(cause.startswith("killed, because it did not") for cause in deaths.values()), deaths


@pytest.mark.slow
def test_leader_that_hangs_is_killed_and_its_sample_goes_on_from_the_last_commit(runner, environment, expected):
    outcome, _ = with_rank_stopped(runner, environment, 0)
    assert outcome.payload == expected
    assert has_lost_leaders(outcome)


@pytest.mark.slow
def test_whole_crew_killed_comes_back_and_finishes_the_sample(runner, environment, expected):
    async def story():
        async with environment.story(slots=3) as story:
            story.at_step(6, 3, lambda: story.kill(*story.crew()))
            story.issue(STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected
    assert has_lost_leaders(outcome)
    assert outcome.releases[0].step >= 6, "steps that the controller had received are not redone"


@pytest.mark.slow
def test_notice_ends_the_crew_at_a_step_boundary_and_redoes_nothing(runner, environment, expected_of_many):
    """The sample resumes on another node from the step that the crew had reached.

    Nothing fits before a deadline as near as SHORT_NOTICE_S, so no worker of the node keeps the sample or receives it
    again: both events that the test waits for happen on machines of any speed, and the state after them lasts.
    """

    async def story():
        async with environment.story(slots=3) as story:
            node = environment.pool.nodes()[0]
            warned = asyncio.Event()
            story.at_step(4, 3, warned.set)
            story.issue(MANY_STEPS)
            await story.until("the crew is at work", warned.is_set)
            await environment.pool.warn(node, NoticeKind.IMMINENT, SHORT_NOTICE_S)
            await story.until("the notice is recorded", lambda: bool(story.of(NoticeGiven)))
            await story.until("the sample is handed back", lambda: bool(story.of(Released)))
            await story.until("the crew has ended", lambda: not story.crews())
            await story.add_node("spot-2", 1)
            await environment.pool.kill_node(node)
            story.node_ended(node)
            outcome = await story.outcome()
            await story.until("the loss of the node is recorded", lambda: bool(story.of(NodeLost)))
            return outcome, len(story.of(NodeLost)), story.holder()

    outcome, nodes_lost, holder = runner.run(story())
    assert outcome.payload == expected_of_many
    assert outcome.redone == 0
    assert [release.reason for release in outcome.releases] == [ReleaseReason.HANDED_BACK]
    assert (nodes_lost, holder.startswith("spot-2.")) == (1, True)


@pytest.mark.slow
def test_slots_that_return_join_the_crew_in_mid_sample_and_change_no_bit(runner, environment, expected_of_many):
    async def story():
        async with environment.story(slots=4) as story:
            story.at_step(4, 4, lambda: story.kill(*story.crew()[2:]))
            story.issue(MANY_STEPS)
            return await story.outcome(), story.degrees(), len(story.of(Leased))

    outcome, degrees, leases = runner.run(story())
    assert outcome.payload == expected_of_many
    assert has_one_leader(outcome, MANY_STEPS)
    assert leases == 1
    assert 2 in degrees
    assert 4 in degrees[degrees.index(2) :], f"the crew of two never grew to four again: {degrees}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_kills_at_random_steps_and_regroupings_change_no_bit(runner, environment, expected_of_many, seed):
    """Kill one to three members or newcomers at once, also while lost workers are still restarting."""
    chance = random.Random(seed)

    async def story():
        async with environment.story(slots=4) as story:

            def kill_some():
                ready = story.ready()
                story.kill(*chance.sample(ready, min(len(ready), chance.randint(1, 3))))

            for step in chance.sample(range(1, MANY_STEPS // 2), 4):
                story.when(lambda step=step: story.step >= step, kill_some)
            for changes in chance.sample(range(2, 8), 2):
                story.when(lambda changes=changes: len(story.of(Crewing)) >= changes, kill_some)
            story.issue(MANY_STEPS)
            return await story.outcome()

    outcome = runner.run(story())
    assert outcome.payload == expected_of_many
    assert not outcome.releases or has_lost_leaders(outcome, most=len(outcome.releases))
