"""Samples shared by the slots of a node when members die, hang, receive a notice or return.

One reserved slot and a spot node of four (`crew_story`). A crash is for one worker at one point, as inside a forward.
"""

import logging

import pytest
from crew_story import FOR_EVER_S, STEPS, CrewStory
from story import COMMIT_EVERY

from spotlight.core.crew_messages import Forward
from spotlight.core.events import Accepted, Crewing, Leased, NodeLost, Released, WorkerLost
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo


def test_forward_has_the_shapes_of_its_samples() -> None:
    with CrewStory() as story:
        leader, *_ = story.until_crew(4)
        worker, sent = story.sim_worker(leader), []
        send = worker.send
        worker.send = lambda message, blob=b"": (sent.append(message), send(message, blob))[1]
        (row,) = worker.engine.live.values()
        story.wait(1.0)
        forwards = [message for message in sent if isinstance(message, Forward)]
        assert forwards
        for forward in forwards:
            assert (forward.rows, forward.tokens, forward.guided) == (1, 48, False)
            assert forward.size == row.request.sample.sampling.size
            assert forward.text_width == len(row.granted.prompt.text)
        story.end()


@pytest.mark.parametrize("after_s", [0.0, 0.45, 1.2])
@pytest.mark.parametrize("rank", [1, 3])
def test_follower_killed_in_a_forward_leader_goes_on_with_the_survivors_from_the_same_step(
    after_s: float, rank: int
) -> None:
    with CrewStory() as story:
        leader, *others = story.until_crew(4)
        request, epoch, before = story.sample_of(leader), story.recorded(Crewing)[-1].epoch, story.steps_taken(leader)
        story.wait(after_s)
        victim = others.pop(rank - 1)
        story.crash_at(CrashPoint.IN_FORWARD, victim)
        story.until_crew(3)
        regrouped = story.recorded(Crewing)[-1]
        story.until_accepted(request)
        (crew,) = regrouped.crews
        assert crew[0] == leader
        assert sorted(crew[1:]) == sorted(others)
        assert regrouped.epoch == epoch + 1
        assert victim in regrouped.reason
        assert 0 < regrouped.seconds < 0.1
        assert story.steps_taken(leader) - before <= STEPS, "a step was taken twice"
        report = story.end()
        assert story.is_undisturbed(request, report)
        assert story.recorded(Accepted, request=request)[0].worker == leader
        assert story.lost() == {victim}


@pytest.mark.parametrize("after_s", [0.0, 0.15, 0.25, 0.35])
@pytest.mark.parametrize("point", [CrashPoint.IN_FORWARD, CrashPoint.AT_BOUNDARY])
def test_leader_killed_sample_goes_on_from_its_last_commit_under_another(point: CrashPoint, after_s: float) -> None:
    with CrewStory() as story:
        leader, *others = story.until_crew(4)
        request = story.sample_of(leader)
        story.wait(after_s)
        story.crash_at(point, leader)
        successor, *followers = story.until_crew(3)
        assert {successor, *followers} == set(others)
        assert story.sample_of(successor) == request
        report = story.end()
        (released,) = story.recorded(Released, request=request)
        (again,) = story.recorded(Leased, request=request, attempt=2)
        assert (released.reason, again.worker, again.step) == (ReleaseReason.LOST, successor, released.step)
        assert released.redone <= COMMIT_EVERY
        assert report.waste.largest <= COMMIT_EVERY
        assert len(story.recorded(Accepted, request=request)) == 1


def test_survivors_of_a_leader_form_the_next_crew_without_waiting_for_the_layout_to_settle() -> None:
    # The trainer rolls nothing out, so the sample of the leader goes to a survivor.
    with CrewStory(elastic={"hysteresis_s": 4.0}, pipeline={"tag": False}) as story:
        leader, *_ = story.until_crew(4)
        story.crash_at(CrashPoint.IN_FORWARD, leader)
        story.until(lambda: story.recorded(WorkerLost, worker=leader))
        lost_at = story.world.now
        story.until_crew(3)
        a_step_alone_s = story.policy.tempo.step_s
        assert story.world.now - lost_at < a_step_alone_s + 0.2
        story.end()


@pytest.mark.parametrize("ranks", [(1, 2), (2, 3)])
def test_two_followers_killed_at_once_leader_goes_on_with_the_last_one(ranks: tuple[int, int]) -> None:
    with CrewStory() as story:
        crew = story.until_crew(4)
        request = story.sample_of(crew[0])
        for rank in ranks:
            story.crash_at(CrashPoint.IN_FORWARD, crew[rank])
        story.until_crew(2)
        assert story.crew == tuple(member for rank, member in enumerate(crew) if rank not in ranks)
        assert story.is_undisturbed(request, story.end())


def test_leader_and_follower_killed_at_once_the_other_two_share_the_sample() -> None:
    with CrewStory() as story:
        leader, first, *others = story.until_crew(4)
        request = story.sample_of(leader)
        story.kill_workers(leader, first)
        story.until_crew(2)
        assert set(story.crew) == set(others)
        report = story.end()
        assert len(story.recorded(Accepted, request=request)) == 1
        assert report.waste.largest <= COMMIT_EVERY


def test_kill_while_survivors_form_next_epoch_forms_without_the_dead() -> None:
    with CrewStory() as story:
        leader, first, second, third = story.until_crew(4)
        request, epoch = story.sample_of(leader), story.recorded(Crewing)[-1].epoch
        story.crash_at(CrashPoint.IN_FORWARD, first)
        story.crash_at(CrashPoint.PREPARED, second)
        story.until_crew(2)
        regrouped = story.recorded(Crewing)[-1]
        assert regrouped.crews == ((leader, third),)
        assert regrouped.epoch == epoch + 2, "an epoch was begun with each of the dead"
        assert story.is_undisturbed(request, story.end())
        assert story.lost() == {first, second}


def test_leader_killed_while_it_forms_again_sample_goes_on_elsewhere() -> None:
    with CrewStory() as story:
        leader, first, *others = story.until_crew(4)
        request = story.sample_of(leader)
        story.crash_at(CrashPoint.IN_FORWARD, first)
        story.crash_at(CrashPoint.PREPARED, leader)
        story.until_crew(2)
        assert set(story.crew) == set(others)
        assert story.sample_of(story.crew[0]) == request
        report = story.end()
        assert report.waste.largest <= COMMIT_EVERY


def test_last_rank_continues_alone_and_its_sample_resumes_from_its_commits_after_its_death() -> None:
    with CrewStory(tempo=Tempo(restart_s=4.0)) as story:
        leader, *followers = story.until_crew(4)
        request = story.sample_of(leader)
        story.kill_workers(*followers)
        story.until(lambda: story.lost() == set(followers))
        before = story.steps_taken(leader)
        story.wait(1.0)
        assert story.crew == ()
        assert story.steps_taken(leader) > before, "the last rank takes no steps"
        assert not story.recorded(Released, request=request)
        story.kill_workers(leader)
        report = story.end()
        assert not story.recorded(NodeLost)
        (released,) = story.recorded(Released, request=request, reason=ReleaseReason.LOST)
        assert released.step > 0
        assert released.redone <= COMMIT_EVERY
        assert report.waste.largest <= COMMIT_EVERY


def test_follower_hung_in_a_forward_is_killed_by_name_and_the_crew_goes_on() -> None:
    with CrewStory() as story:
        leader, first, hung, third = story.until_crew(4)
        request, epoch = story.sample_of(leader), story.recorded(Crewing)[-1].epoch
        story.freeze_at(CrashPoint.IN_FORWARD, hung, FOR_EVER_S)
        began = story.world.now
        story.until_crew(3)
        assert story.world.now - began < 5.0
        assert story.crew[0] == leader
        assert set(story.crew[1:]) == {first, third}
        assert f"{hung} was killed, because it did not leave crew" in story.recorded(Crewing)[-1].reason
        assert story.is_undisturbed(request, story.end())
        assert [(lost.worker, lost.cause) for lost in story.recorded(WorkerLost)] == [
            (hung, f"killed, because it did not leave crew spot-1.1#{epoch} within 0.5 s of its end")
        ]


def test_leader_hung_in_a_forward_is_killed_by_name_and_its_sample_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "spotlight.crews")
    with CrewStory() as story:
        leader, *others = story.until_crew(4)
        request, epoch = story.sample_of(leader), story.recorded(Crewing)[-1].epoch
        story.freeze_at(CrashPoint.IN_FORWARD, leader, FOR_EVER_S)
        began = story.world.now
        story.until_crew(3)
        assert story.world.now - began < 5.0
        assert set(story.crew) == set(others)
        assert story.sample_of(story.crew[0]) == request
        report = story.end()
        assert report.waste.largest <= COMMIT_EVERY
        assert [(lost.worker, lost.cause) for lost in story.recorded(WorkerLost)] == [
            (leader, f"killed, because it did not leave crew spot-1.1#{epoch} within 0.5 s of its end")
        ]
        assert f"{leader} is killed: it did not leave crew" in caplog.text


def test_leader_hung_between_forwards_is_fenced_and_its_followers_are_freed() -> None:
    with CrewStory() as story:
        leader, *others = story.until_crew(4)
        request = story.sample_of(leader)
        story.freeze_at(CrashPoint.AT_BOUNDARY, leader, FOR_EVER_S)
        story.until(lambda: story.recorded(WorkerLost, worker=leader, cause="silent"))
        story.until(lambda: story.recorded(Leased, request=request, attempt=2))
        assert story.recorded(Leased, request=request, attempt=2)[0].worker in others
        report = story.end()
        assert report.waste.largest <= COMMIT_EVERY


def test_imminent_notice_crew_disbands_at_the_boundary_and_no_step_is_lost() -> None:
    with CrewStory() as story:
        leader, *_ = story.until_crew(4)
        request, before = story.sample_of(leader), story.steps_taken(leader)
        story.wait(0.45)
        before_notice = len(story.recorded(Crewing))
        story.warn("spot-1", NoticeKind.IMMINENT, 8.0)
        story.until(lambda: not story.crew)
        assert "goes in 8 s" in story.recorded(Crewing)[-1].reason
        alone_from = story.steps_taken(leader) - before
        story.wait(7.9)
        story.kill_for_good("spot-1")
        report = story.end()
        (released,) = story.recorded(Released, request=request)
        assert released.reason is ReleaseReason.HANDED_BACK
        assert released.step >= alone_from > 0
        assert (released.redone, report.waste.redone) == (0, 0)
        assert not any(event.crews for event in story.recorded(Crewing)[before_notice:]), (
            "a slot under notice joined a crew"
        )


def test_returning_slots_join_at_a_step_boundary_and_the_crew_grows() -> None:
    with CrewStory(tempo=Tempo(restart_s=0.5, start_s=0.5)) as story:
        leader, first, *others = story.until_crew(4)
        request, before = story.sample_of(leader), story.steps_taken(leader)
        story.kill_workers(*others)
        story.until_crew(2)
        assert story.crew == (leader, first)
        story.until_crew(4)
        returned = {WorkerId(f"{follower.rpartition('.')[0]}.2") for follower in others}
        assert set(story.crew) == {leader, first} | returned
        assert story.crew[0] == leader
        story.until_accepted(request)
        assert story.steps_taken(leader) - before <= STEPS, "a step was taken twice"
        assert story.is_undisturbed(request, story.end())
