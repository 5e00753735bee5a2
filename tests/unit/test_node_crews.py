"""A node's crews as its agent drives them: from messages of workers and controller to orders and reports."""

from asyncio import sleep

import pytest
from node_crew_stories import A100, H100, NEXT, TOKENS, WEIGHTS, CrewNode, crew_of, forward, virtually
from regroup_stories import NODE, A, B, C, D

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.crew_messages import Demand, Form, Formed, ForwardDone, Prepare
from spotlight.core.work import NoticeKind, SlotClass
from spotlight.node.notices.notice import Notice


@virtually
async def test_idle_slots_join_the_one_that_is_busy_and_the_store_is_open_for_them_alone():
    node = await crew_of(A, B, C)
    assert node.stores == {node.token()}
    assert [type(order) for worker, order in node.sent if worker == B] == [Prepare, Form]


@virtually
async def test_follower_dies_survivors_are_prepared_at_the_next_epoch_at_once():
    node = await crew_of(A, B, C)
    old = node.token()
    node.sent.clear()
    node.crews.died(B, "SIGKILL")
    assert [worker for worker, order in node.sent if isinstance(order, Prepare)] == [A, C]
    await node.settle()
    assert node.now_in_crews == ((A, C),)
    assert node.token().epoch == old.epoch + 1
    assert node.stores == {node.token()}
    assert B in node.reports[-1].reason


@virtually
async def test_training_worker_is_never_in_a_crew():
    node = CrewNode()
    trains = m.Hello(schema=1, code="", node=NODE, slot_class=SlotClass.RESERVED, rows=1, pid=1, trains=True)
    node.crews.receive(A, trains)
    await node.join(B, C)
    await sleep(node.hysteresis_s)
    await node.lease(B)
    assert node.now_in_crews == ((B, C),)


@virtually
async def test_slot_that_was_not_measured_is_taken_for_one_like_the_others():
    node = CrewNode()
    await node.join(A, speed=20.0)
    await node.join(B, C)
    await sleep(node.hysteresis_s)
    await node.lease(A)
    assert node.now_in_crews == ((A, B, C),), "a newcomer without a speed was taken for a slow one"


@virtually
async def test_slot_that_was_not_measured_is_taken_for_one_of_its_kind():
    node = CrewNode()
    await node.join(A, kind=H100, speed=20.0)
    await node.join(B, kind=A100, speed=2.0)
    await node.join(C, kind=A100)
    await node.join(D, kind=H100)
    await sleep(node.hysteresis_s)
    await node.lease(A)
    assert node.now_in_crews == ((A, D),)


@virtually
async def test_newcomer_that_is_not_needed_leaves_the_crew_as_it_is():
    node = CrewNode(mixed_gpus="refuse")
    await node.join(A, B, C)
    await node.lease(A)
    await node.lease(B)
    await sleep(node.hysteresis_s)
    assert node.now_in_crews == ((A, C),)
    await node.finish(B)
    await sleep(node.hysteresis_s)
    assert node.now_in_crews == ((A, C, B),), "the one that followed already comes first"
    sent = len(node.sent)
    await node.join(D, kind=H100)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ((A, C, B),)
    assert len(node.sent) == sent, "the crew was formed anew for another order of its followers"


@virtually
async def test_slot_that_loads_new_weights_is_left_alone_until_it_holds_them():
    node = await crew_of(A, B)
    node.crews.dropped((WEIGHTS, NEXT))
    for worker in (A, B):
        node.crews.receive(worker, m.Held(weights=NEXT, digest="e"))
    await node.join(C)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ((A, B),), "it holds what the leader needs, but would keep it waiting"
    node.crews.receive(C, m.Held(weights=NEXT, digest="e"))
    await node.settle()
    assert node.now_in_crews == ((A, B, C),)


@virtually
async def test_change_that_comes_too_soon_is_made_when_the_last_one_has_settled():
    node = await crew_of(A, B, C)
    node.crews.demand(Demand(waiting=((TOKENS, 2),)))
    await node.settle()
    assert node.now_in_crews == ((A, B, C),)
    await sleep(node.hysteresis_s)
    assert node.now_in_crews == ()


@virtually
async def test_worker_that_takes_over_from_a_dead_leader_is_helped_at_once():
    node = await crew_of(A, B, C)
    node.crews.died(A, "SIGKILL")
    await node.settle()
    assert node.now_in_crews == ()
    await node.lease(B)
    assert node.now_in_crews == ((B, C),)


GOES = Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=1e6)
STAYS = Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=1e6, withdrawn=True)
MAY_GO = Notice(kind=NoticeKind.ADVISORY, source="aws")


@virtually
async def test_imminent_notice_ends_crews_and_an_advisory_one_does_not():
    node = await crew_of(A, B)
    node.crews.warned(MAY_GO)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ((A, B),)
    node.crews.warned(GOES)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ()
    assert node.killed == []


@pytest.mark.parametrize("next_notice", [STAYS, MAY_GO])
def test_crew_forms_again_when_the_imminent_notice_is_withdrawn_or_becomes_advisory(next_notice):
    @virtually
    async def scenario():
        node = await crew_of(A, B)
        node.crews.warned(GOES)
        await sleep(2 * node.hysteresis_s)
        assert node.now_in_crews == ()
        node.crews.warned(next_notice)
        await sleep(2 * node.hysteresis_s)
        assert node.now_in_crews == ((A, B),)

    scenario()


@virtually
async def test_worker_that_joins_under_an_imminent_notice_joins_no_crew_until_it_is_withdrawn():
    node = CrewNode()
    node.crews.warned(GOES)
    await node.join(A, B)
    await node.lease(A)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ()
    node.crews.warned(STAYS)
    await sleep(2 * node.hysteresis_s)
    assert node.now_in_crews == ((A, B),)


@virtually
async def test_message_of_an_old_token_is_refused_and_counted_and_not_forwarded():
    node = await crew_of(A, B, C)
    old = node.token()
    node.crews.died(C, "SIGKILL")
    await node.settle()
    reports, refused = list(node.reports), node.crews.refused
    assert node.crews.receive(B, Formed(token=old))
    assert node.crews.receive(C, Formed(token=old))
    await sleep(2 * node.hysteresis_s)
    assert node.crews.refused == refused + 2
    assert node.reports == reports


@virtually
async def test_follower_that_does_not_leave_is_killed_and_named():
    node = await crew_of(A, B, C)
    node.unresponsive.add(B)
    node.crews.warned(GOES)
    await sleep(ElasticConfig().boundary_s + 1.0)
    ((worker, why),) = node.killed
    assert worker == B
    assert "did not leave crew" in why


@virtually
async def test_leader_that_hangs_after_the_last_exchange_is_killed_and_its_living_followers_are_not():
    node = await crew_of(A, B, C)
    node.unresponsive.add(A)
    node.crews.receive(A, forward(node.token(), 0))
    node.crews.receive(A, ForwardDone(token=node.token(), number=0))
    node.crews.receive(A, forward(node.token(), 1))
    for _ in range(12):
        await sleep(0.5)
        for follower in (B, C):
            node.crews.receive(follower, m.Alive())
    assert [worker for worker, _ in node.killed] == [A]


@virtually
async def test_holder_of_weights_is_of_the_newcomers_kind_where_there_is_one():
    node = CrewNode()
    await node.join(A, kind=H100)
    await node.join(B, kind=A100)
    await node.join(C, kind=A100)
    assert node.crews.holder(WEIGHTS, other_than=C) == B
    assert node.crews.holder(WEIGHTS, other_than=B) == C
    node.crews.died(C, "SIGKILL")
    assert node.crews.holder(WEIGHTS, other_than=B) == A
    assert node.crews.holder(NEXT, other_than=B) is None
