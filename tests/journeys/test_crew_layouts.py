"""Membership of crews: fenced workers, newcomers without the weights, GPUs of other kinds, slots needed by new work."""

import json
import re

from crew_story import SPOT, STEPS, CrewStory
from story import slot_of

from spotlight.control.market.prices import PriceTable
from spotlight.core.crew_messages import (
    Broke,
    Disband,
    Form,
    Formed,
    ForwardDone,
    GroupToken,
    Prepare,
    Prepared,
)
from spotlight.core.events import Accepted, Crewing, Holding, Leased, Released, WorkerJoined, WorkerLost
from spotlight.core.journal import read
from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason, SlotClass
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo
from spotlight.surface.json_output import json_line
from spotlight.surface.projections import RunView
from spotlight.surface.status import status
from spotlight.surface.timeline import row_name

QUICK_RETURN = Tempo(restart_s=0.3, start_s=0.3)
RESERVED = WorkerId("reserved-1.1/0.1")
H100, A100 = "NVIDIA H100", "NVIDIA A100"


def token_of(crewing: Crewing) -> GroupToken:
    return GroupToken(crewing.node, crewing.epoch)


def test_agent_refuses_messages_of_an_old_token_and_nothing_changes() -> None:
    with CrewStory() as story:
        leader, victim, *_ = members = story.until_crew(4)
        request, old, zombie = story.sample_of(leader), token_of(story.recorded(Crewing)[-1]), story.sim_worker(victim)
        story.crash_at(CrashPoint.IN_FORWARD, victim)
        crew = story.until_crew(3)
        crewings, refused = len(story.recorded(Crewing)), story.node.crews.refused
        late = [
            (zombie, Formed(token=old)),
            (zombie, Broke(token=old, problem="late")),
            (story.sim_worker(crew[1]), Prepared(token=old, members=members, holds=())),
            (story.sim_worker(crew[2]), Formed(token=old)),
            (story.sim_worker(leader), ForwardDone(token=old, number=0)),
        ]
        for worker, message in late:
            story.node.send_from(worker.id, message)
        assert story.node.crews.refused == refused + len(late)
        story.wait(1.0)
        assert story.crew == crew
        assert len(story.recorded(Crewing)) == crewings
        assert story.is_undisturbed(request, story.end())
        assert story.lost() == {victim}


def test_worker_refuses_orders_of_an_old_token_and_stays_in_its_crew() -> None:
    with CrewStory() as story:
        leader, victim, *_ = members = story.until_crew(4)
        request, old = story.sample_of(leader), token_of(story.recorded(Crewing)[-1])
        story.crash_at(CrashPoint.IN_FORWARD, victim)
        crew = story.until_crew(3)
        crewings, follower = len(story.recorded(Crewing)), story.sim_worker(crew[1])
        before = follower.crew.membership.refused
        late = [Form(token=old, members=members, store=""), Disband(token=old), Prepare(token=old, members=members)]
        for order in late:
            follower.receive(order, b"")
        story.wait(1.0)
        assert follower.crew.membership.refused == before + len(late)
        assert follower.crew.membership.degree == len(crew)
        assert (story.crew, len(story.recorded(Crewing))) == (crew, crewings)
        assert story.is_undisturbed(request, story.end())


def test_new_work_while_a_crew_serves_dissolves_it_and_every_slot_works() -> None:
    with CrewStory(reserved_rows=4, rollout={"prompts": 1, "group_size": 5, "steps": STEPS}) as story:
        story.kill_for_good(SPOT)
        story.until(lambda: len(story.recorded(Leased)) == 4)
        story.add_node(SPOT)
        story.until(lambda: len(story.crew) == 4 and len(story.world.owed[RESERVED]) == 4)
        leader, *_ = crew = story.crew
        request, lease = story.sample_of(leader), len(story.recorded(Leased, request=story.sample_of(leader)))
        story.kill_workers(RESERVED)
        story.until(lambda: all(story.world.owed.get(worker) for worker in crew))
        assert story.crew == ()
        before = {worker: story.steps_taken(worker) for worker in crew}
        story.wait(2.0)
        assert all(story.steps_taken(worker) > before[worker] for worker in crew)
        assert len(story.recorded(Leased, request=request)) == lease, "the leader's sample went elsewhere"
        story.end()


def test_grant_that_crosses_the_order_to_follow_is_handed_back_and_made_elsewhere() -> None:
    with CrewStory(tempo=Tempo(latency_s=0.3, restart_s=30.0)) as story:
        story.until(lambda: story.recorded(Released, reason=ReleaseReason.HANDED_BACK))
        handed_back = story.recorded(Released, reason=ReleaseReason.HANDED_BACK)
        followers = {member for event in story.recorded(Crewing) for crew in event.crews for member in crew[1:]}
        for crossed in handed_back:
            (lease,) = story.recorded(Leased, request=crossed.request, attempt=crossed.attempt)
            assert lease.worker in followers
            assert (crossed.step, crossed.redone) == (0, 0)
        story.end()
        for crossed in handed_back:
            (accepted,) = story.recorded(Accepted, request=crossed.request)
            assert accepted.attempt > crossed.attempt


def test_newcomer_joins_the_crew_once_it_holds_the_weights_and_the_crew_does_not_wait() -> None:
    with CrewStory(tempo=QUICK_RETURN) as story:
        leader, *_, victim = story.until_crew(4)
        request = story.sample_of(leader)
        newcomer = WorkerId(f"{victim.rpartition('.')[0]}.2")
        story.loads_slowly[newcomer] = 1.5
        story.crash_at(CrashPoint.IN_FORWARD, victim)
        story.until(lambda: story.recorded(WorkerJoined, worker=newcomer))
        began, before = story.world.now, story.steps_taken(leader)
        story.until_crew(4)
        taken_in, waited_s = story.events.index(story.recorded(Crewing)[-1]), story.world.now - began
        held = [story.events.index(event) for event in story.recorded(Holding, worker=newcomer)]
        assert newcomer in story.crew
        assert len(held) == 2
        assert max(held) < taken_in
        at_three = story.policy.tempo.step_s / 3
        assert story.steps_taken(leader) - before >= waited_s / at_three - 3, "the leader waited for the newcomer"
        assert story.is_undisturbed(request, story.end())


def test_follower_that_loads_weights_longer_than_its_leader_is_not_killed() -> None:
    with CrewStory(tempo=QUICK_RETURN, iterations=3) as story:
        follower = WorkerId("spot-1.1/2.1")
        story.loads_slowly[follower] = 2.0
        story.end()
        assert not story.recorded(WorkerLost)


def test_every_crew_has_one_gpu_kind_where_mixed_gpus_are_refused() -> None:
    story = CrewStory(elastic={"mixed_gpus": "refuse"})
    story.policy.kinds = {0: A100, 1: H100, 2: A100, 3: H100}
    with story:
        story.until_crew(2)
        story.end()
        crews = [crew for event in story.recorded(Crewing) for crew in event.crews]
        kinds = [{story.policy.kind(member) for member in crew} for crew in crews]
        assert kinds
        assert all(len(kind) == 1 for kind in kinds)


def test_slowest_member_is_named_where_mixed_gpus_are_allowed() -> None:
    story = CrewStory()
    story.policy.kinds = {0: A100, 1: H100, 2: A100, 3: H100}
    story.slowness = {0: 1.3, 2: 1.3}
    with story:
        story.until_crew(4)
        crewing = story.recorded(Crewing)[-1]
        named = re.search(r"(\S+) \((.+?)\) is the slowest of (\S+)'s crew", crewing.reason)
        assert named is not None, crewing.reason
        assert (story.policy.kind(WorkerId(named[1])), named[2], named[3]) == (A100, A100, crewing.crews[0][0])
        assert slot_of(WorkerId(named[1])) in (0, 2)
        story.end()


def test_deterministic_run_with_crews_and_losses_ends_with_the_weights_of_the_undisturbed_one() -> None:
    with CrewStory(tempo=QUICK_RETURN) as calm:
        calm.end()
    with CrewStory(tempo=QUICK_RETURN) as story:
        leader, first, second, third = story.until_crew(4)
        story.crash_at(CrashPoint.IN_FORWARD, first)
        story.crash_at(CrashPoint.PREPARED, second)
        story.until_crew(2)
        story.crash_at(CrashPoint.IN_FORWARD, leader)
        story.crash_at(CrashPoint.DISBANDING, third)
        story.end()
        assert {leader, first, second, third} <= story.lost()
    assert story.theta == calm.theta


def test_status_and_timeline_of_a_run_with_crews_show_their_members_and_shares() -> None:
    with CrewStory() as story:
        story.until_crew(4)
        view = RunView.of(read(story.folder.journal))
        crews = json.loads(json_line(status(view, PriceTable.load())))["crews"]
        assert crews["now"] == [[row_name(member) for member in story.crew]]
        assert crews["formed"] == sum(bool(event.crews) for event in story.recorded(Crewing))
        story.end()
        view = RunView.of(read(story.folder.journal))
        shares = [row.crew_share(view.at) for row in view.timeline.ordered() if row.slot_class is SlotClass.SPOT]
        assert all(0.0 < share < 1.0 for share in shares)
