"""Every wait has a bound, and the worker blamed for it is named; the leader last."""

import pytest
from regroup_stories import A, B, C, D, Node, kills, orders, replans

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.crew_messages import Disband, Formed

QUICK = ElasticConfig(step_floor_s=0.1, first_step_s=5.0)


def deadline_s(node: Node) -> float:
    due = node.regroup.next_deadline()
    assert due is not None
    return due - node.now


def teach(node: Node, seconds: float, forwards: int) -> None:
    for number in range(forwards):
        node.forward(A, number)
        node.now += seconds
        node.done(A, number)


def test_first_forward_of_a_size_may_take_long() -> None:
    node = Node(A, B, config=QUICK)
    node.serve(A, B)
    node.forward(A)
    assert deadline_s(node) == 5.0


def test_deadline_is_a_multiple_of_the_slowest_recent_forwards() -> None:
    node = Node(A, B, config=QUICK)
    node.serve(A, B)
    teach(node, 0.2, 10)
    node.forward(A, 10)
    assert deadline_s(node) == pytest.approx(0.8)


def test_deadline_never_falls_below_the_floor() -> None:
    node = Node(A, B, config=QUICK)
    node.serve(A, B)
    teach(node, 0.001, 10)
    node.forward(A, 10)
    assert deadline_s(node) == pytest.approx(0.1)


def test_smaller_crew_after_a_loss_gets_the_time_that_fewer_members_need() -> None:
    node = Node(A, B, C, D, config=QUICK)
    node.serve(A, B, C, D)
    teach(node, 0.2, 10)
    node.gone(D)
    node.gone(C)
    node.serve(A, B)
    node.forward(A)
    assert deadline_s(node) == pytest.approx(1.6)


def test_between_forwards_nothing_is_due() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.forward(A)
    node.done(A)
    assert node.regroup.next_deadline() is None


def test_only_follower_that_sent_nothing_is_killed_for_a_hanging_forward() -> None:
    node = Node(A, B, C, config=QUICK)
    token = node.serve(A, B, C)
    node.forward(A)
    node.done(C)
    late = node.later(5.0)
    assert kills(late) == [B]
    assert f"{B} was killed, because it did not end forward 0 of crew {token} within 5 s" in str(late)
    assert replans(late)


def test_follower_without_signs_of_life_is_blamed_first() -> None:
    node = Node(A, B, C, config=QUICK)
    node.serve(A, B, C)
    node.forward(A)
    node.now += 4.5
    node.regroup.seen(B, node.now)
    assert kills(node.later(0.5)) == [C]


def test_follower_that_another_member_named_is_blamed_before_other_silent_ones() -> None:
    node = Node(A, B, C, D, config=QUICK)
    token = node.serve(A, B, C, D)
    node.forward(A)
    node.broke(A, token, waited_for=C)
    assert kills(node.later(0.5)) == [], "all of them live, and may be waiting out their exchanges"
    assert kills(node.later(1.0)) == [C]
    assert kills(node.later(0.4)) == []
    assert kills(node.later(0.1)) == [B, D]


def test_leader_is_blamed_only_when_no_follower_is_silent() -> None:
    node = Node(A, B, C, config=QUICK)
    node.serve(A, B, C)
    node.forward(A)
    node.done(B)
    node.done(C)
    assert kills(node.later(5.0)) == [A]


def test_leader_that_hangs_alone_is_found_after_its_followers() -> None:
    node = Node(A, B, config=QUICK)
    node.serve(A, B)
    node.forward(A)
    assert kills(node.later(5.0)) == [B]
    assert kills(node.later(0.5)) == [A]
    assert node.regroup.alive == ()


def test_leader_that_reports_within_the_grace_goes_on_alone() -> None:
    node = Node(A, B, config=QUICK)
    token = node.serve(A, B)
    node.forward(A)
    node.later(5.0)
    node.broke(A, token, waited_for=B)
    assert orders(node.wish((A,)), Disband) == [A]
    assert kills(node.later(10.0)) == []


def test_member_that_reaches_no_boundary_is_named_but_not_killed() -> None:
    node = Node(A, B, C)
    node.wish((A, B, C))
    node.prepared(A)
    node.prepared(B)
    late = node.later(10.0)
    assert kills(late) == []
    assert replans(late) == [f"{C} reached no step boundary within 10 s"]
    assert node.regroup.apart() == ((A, C), (B, C))


def test_member_that_does_not_connect_is_killed_after_the_forming_time_and_the_grace() -> None:
    node = Node(A, B)
    node.wish((A, B))
    node.prepare(A, B)
    token = node.token(A)
    assert kills(node.later(1.0)) == []
    node.broke(A, token)
    assert kills(node.later(0.5)) == [B]


def test_leader_that_never_drains_is_killed_after_the_boundary_time() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.wish((A,), (B,))
    assert kills(node.later(9.9)) == []
    assert kills(node.later(0.1)) == [A]


def test_follower_that_never_drains_is_killed_after_the_time_for_a_boundary() -> None:
    node = Node(A, B)
    token = node.serve(A, B)
    node.wish((A,), (B,))
    node.disbanded(A, token)
    assert kills(node.later(0.5)) == []
    assert kills(node.later(ElasticConfig().boundary_s)) == [B]
    assert node.regroup.alive == (A,)


def test_message_of_an_old_token_is_no_sign_of_life() -> None:
    node = Node(A, B, C, D, config=QUICK)
    old = node.serve(A, B, C, D)
    node.gone(D)
    node.serve(A, B, C)
    node.forward(A)
    node.now += 4.5
    node.regroup.seen(B, node.now)
    node.receive(C, Formed(token=old))
    assert kills(node.later(0.5)) == [C]
