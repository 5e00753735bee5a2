"""Losses and errors at every stage: each survivor gets one order, soon; nothing of an old crew comes back."""

import pytest
from regroup_stories import A, B, C, D, Node, a_forward, kills, orders, refusals, replans, reports

from spotlight.control.elastic.actions import CloseStore
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.crew_messages import Disband, Formed, Prepare


def test_loss_of_a_follower_reforms_the_survivors_with_one_order_each() -> None:
    node = Node(A, B, C, D)
    token = node.serve(A, B, C, D)
    node.forward(A)
    lost = node.gone(D)
    assert lost[0] == CloseStore(token)
    assert reports(lost) == [()]
    assert orders(lost, Disband) == []
    again = node.wish((A, B, C))
    assert orders(again, Prepare) == [A, B, C]
    assert orders(again, Disband) == []
    node.prepare(A, B, C)
    node.connect(A, B, C)
    assert node.regroup.crews == ((A, B, C),)
    assert node.token(A).epoch == 2


def test_loss_of_the_leader_frees_its_followers_for_the_next_layout() -> None:
    node = Node(A, B, C)
    node.serve(A, B, C)
    node.gone(A)
    assert orders(node.wish((B, C)), Prepare) == [B, C]


def test_error_seen_before_the_death_keeps_no_worker_apart() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B, C)
    node.forward(A)
    assert replans(node.broke(A, token)) == []
    assert replans(node.broke(B, token)) == []
    assert orders(node.wish((A, B), (C,)), Prepare) == []
    assert orders(node.gone(C), Prepare) == [A, B]
    assert node.regroup.apart() == ()


def test_error_without_a_death_keeps_the_crew_apart_for_a_while() -> None:
    node = Node(A, B)
    token = node.serve(A, B)
    node.forward(A)
    node.broke(A, token)
    assert replans(node.broke(B, token)) == [f"crew {token} failed, though all its members live"]
    assert node.regroup.apart() == ((A, B),)
    assert orders(node.wish((A, B)), Prepare) == []
    again = node.later(1.0)
    assert replans(again) == [f"{A} and {B} may be tried together again"]
    assert orders(again, Prepare) == [A, B]


def test_pair_that_keeps_failing_is_tried_ever_more_rarely() -> None:
    node = Node(A, B)
    waits = []
    for _ in range(8):
        token = node.serve(A, B)
        node.broke(A, token)
        node.broke(B, token)
        node.wish((A,), (B,))
        due = node.regroup.next_deadline()
        assert due is not None
        waits.append(due - node.now)
        node.later(waits[-1])
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_pair_that_worked_long_enough_is_trusted_again() -> None:
    node = Node(A, B)
    token = node.serve(A, B)
    node.broke(A, token)
    node.broke(B, token)
    node.later(1.0)
    token = node.serve(A, B)
    for number in range(8):
        node.forward(A, number)
        node.done(A, number)
    node.broke(A, token)
    node.broke(B, token)
    assert node.regroup.next_deadline() == pytest.approx(node.now + 0.05)
    node.wish((A,), (B,))
    assert node.regroup.next_deadline() == pytest.approx(node.now + 1.0)


def test_death_while_preparing_rolls_back_and_reforms_without_it() -> None:
    node = Node(A, B, C)
    node.wish((A, B, C))
    node.prepared(A)
    node.gone(C)
    again = node.wish((A, B))
    assert orders(again, Prepare) == [A, B]
    assert node.token(A).epoch == 2
    node.prepare(A, B)
    node.connect(A, B)
    assert node.regroup.crews == ((A, B),)


def test_death_while_connecting_reforms_without_it_and_the_old_store_is_closed() -> None:
    node = Node(A, B, C)
    node.wish((A, B, C))
    node.prepare(A, B, C)
    token = node.token(A)
    node.receive(A, Formed(token=token))
    assert CloseStore(token) in node.gone(C)
    assert orders(node.wish((A, B)), Prepare) == [A, B]
    assert refusals(node.receive(B, Formed(token=token)))


def test_two_deaths_at_once_leave_the_others_a_crew() -> None:
    node = Node(A, B, C, D)
    node.serve(A, B, C, D)
    node.gone(C)
    node.gone(D)
    assert orders(node.wish((A, B)), Prepare) == [A, B]


def test_second_death_during_the_reform_is_survived() -> None:
    node = Node(A, B, C)
    node.serve(A, B, C)
    node.gone(C)
    node.wish((A, B))
    node.prepared(A)
    node.gone(B)
    actions = node.wish((A,))
    assert set(orders(actions, Disband)) == {A}
    assert node.regroup.is_settled


def test_death_of_the_last_member_leaves_an_empty_node() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.gone(A)
    node.gone(B)
    assert node.wish() == []
    assert node.regroup.alive == ()
    assert node.regroup.is_settled
    assert node.regroup.next_deadline() is None


def test_survivor_without_a_wish_is_disbanded_at_the_next_tick() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.gone(B)
    due = node.regroup.next_deadline()
    assert due is not None
    assert orders(node.later(due - node.now), Disband) == [A]


def test_survivor_that_does_not_leave_is_killed_with_a_reason_that_names_the_wait() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B, C)
    node.gone(C)
    node.wish((A,), (B,))
    node.disbanded(A, token)
    assert kills(node.later(0.5)) == []
    last = node.later(1.0)
    assert kills(last) == [B]
    assert f"did not leave crew {token} within 1.5 s" in str(last)


def test_survivor_that_shows_signs_of_life_has_the_time_for_a_boundary_to_leave() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B, C)
    node.gone(C)
    node.wish((A,), (B,))
    node.disbanded(A, token)
    boundary_s = ElasticConfig().boundary_s
    for _ in range(int(boundary_s / 0.5) - 1):
        node.regroup.seen(B, node.now)
        assert kills(node.later(0.5)) == [], "it may be loading weights, or encoding a text"
    node.regroup.seen(B, node.now)
    assert kills(node.later(0.5)) == [B], "but not for ever"


def test_member_that_reports_late_but_in_time_is_not_killed() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B, C)
    node.gone(C)
    node.wish((A, B))
    node.now += 0.45
    node.broke(A, token)
    node.prepared(B)
    assert kills(node.later(5.0)) == []


def test_messages_of_an_old_token_change_nothing() -> None:
    node = Node(A, B, C)
    old = node.serve(A, B, C)
    node.gone(C)
    node.wish((A, B))
    node.prepare(A, B)
    node.connect(A, B)
    before = node.regroup.layout
    assert refusals(node.receive(A, a_forward(old)))
    assert refusals(node.receive(B, Formed(token=old)))
    assert refusals(node.broke(B, old))
    assert refusals(node.receive(C, a_forward(old))) == ["it is gone"]
    assert node.regroup.layout == before
    assert node.regroup.refused == 4


def test_member_with_a_problem_is_left_out_of_the_next_crew() -> None:
    node = Node(A, B, C)
    node.wish((A, B, C))
    node.prepared(A)
    ends = node.prepared(B, problem="out of memory")
    assert replans(ends) == [f"{B} cannot join: out of memory"]
    assert orders(node.wish((A, C), (B,)), Prepare) == [A, C]


def test_follower_that_leaves_of_its_own_accord_breaks_the_crew() -> None:
    node = Node(A, B)
    token = node.serve(A, B)
    assert CloseStore(token) in node.disbanded(B, token)
    assert node.regroup.crews == ()


def test_loss_after_a_kill_causes_no_further_action() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.forward(A)
    node.later(60.0)
    assert node.gone(B) == []


def test_leader_that_leaves_a_forming_crew_rolls_it_back() -> None:
    node = Node(A, B)
    node.wish((A, B))
    token = node.token(A)
    node.prepared(B)
    assert replans(node.disbanded(A, token)) == [f"{A} left without an order"]
    assert set(orders(node.wish((A,), (B,)), Disband)) == {A, B}
    assert node.regroup.is_settled
