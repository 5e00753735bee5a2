"""A node's crews while something is on its way: a grant, a next sample, new weights."""

from asyncio import sleep

from node_crew_stories import NEXT, WEIGHTS, CrewNode, crew_of, virtually
from regroup_stories import A, B, C, D

from spotlight.node.crews import ANSWER_S


@virtually
async def test_grant_that_crossed_the_order_to_follow_leaves_the_crew_as_it_is():
    node = await crew_of(A, B, C)
    sent, reports = list(node.sent), list(node.reports)
    await node.lease(B)
    await sleep(2 * node.hysteresis_s)
    await node.finish(B)
    await sleep(2 * node.hysteresis_s)
    assert (node.sent, node.reports) == (sent, reports)


@virtually
async def test_grant_that_crossed_the_order_to_prepare_leaves_the_crew_to_form():
    node = CrewNode()
    await node.join(A, B, C)
    await sleep(node.hysteresis_s)
    node.unresponsive.add(B)
    await node.lease(A)
    await node.lease(B)
    prepare = next(order for worker, order in node.sent if worker == B)
    node.unresponsive.clear()
    node.held.pop(B)
    node.send(B, prepare)
    await sleep(2 * node.hysteresis_s)
    assert [crewed.crews for crewed in node.reports] == [((A, B, C),)]


@virtually
async def test_leader_that_is_given_its_next_sample_keeps_its_crew():
    node = CrewNode()
    await node.join(A, B, C, D)
    await node.lease(A)
    await node.lease(B)
    await sleep(3 * node.hysteresis_s)
    crews, reports = node.now_in_crews, len(node.reports)
    for _ in range(5):
        await node.finish(crews[0][0])
        await node.lease(crews[0][0])
        await sleep(2 * node.hysteresis_s)
    assert (node.now_in_crews, len(node.reports)) == (crews, reports)


@virtually
async def test_leader_without_a_next_sample_helps_the_other_one():
    node = CrewNode()
    await node.join(A, B, C, D)
    await node.lease(A)
    await node.lease(B)
    await sleep(3 * node.hysteresis_s)
    await node.finish(A)
    await sleep(ANSWER_S)
    await node.settle()
    ((leader, *followers),) = node.now_in_crews
    assert (leader, sorted(followers)) == (B, [A, C, D])


@virtually
async def test_crew_that_ended_for_new_weights_forms_again_once_all_hold_them():
    node = await crew_of(A, B, C, hysteresis_s=5.0)
    node.crews.dropped((WEIGHTS, NEXT))
    await node.settle()
    assert node.now_in_crews == ()
    node.load(A, B)
    await sleep(2 * ANSWER_S)
    assert node.now_in_crews == (), "the first two did not wait for the third"
    node.load(C)
    await sleep(ANSWER_S)
    await node.settle()
    assert node.now_in_crews == ((A, B, C),)


@virtually
async def test_slot_that_loads_for_too_long_is_no_longer_waited_for():
    node = await crew_of(A, B, C)
    node.crews.dropped((WEIGHTS, NEXT))
    node.load(A, B)
    await sleep(node.hysteresis_s)
    await node.settle()
    assert node.now_in_crews == ((A, B),)
