"""Crews come and go in order: formed after all agree, drained leader first, no step lost."""

from regroup_stories import NODE, WEIGHTS, A, B, C, D, Node, a_forward, orders, refusals, relayed, replans, reports

from spotlight.control.elastic.actions import CloseStore, OpenStore, ReportCrews, Send
from spotlight.core.crew_messages import Disband, Form, Formed, GroupToken, Prepare
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


def test_crew_forms_only_after_every_member_is_prepared() -> None:
    node = Node(A, B)
    assert orders(node.wish((A, B)), Prepare) == [A, B]
    assert node.prepared(A) == []
    formed = node.prepared(B)
    assert formed[0] == OpenStore(GroupToken(NODE, 1))
    assert orders(formed, Form) == [A, B]
    assert node.receive(A, Formed(token=node.token(A))) == []
    assert node.regroup.crews == ()
    assert reports(node.receive(B, Formed(token=node.token(B)))) == [((A, B),)]
    assert node.regroup.is_settled


def test_crew_with_different_weights_is_rolled_back_and_the_worker_that_differs_is_kept_apart() -> None:
    node = Node(A, B, C)
    node.wish((A, B, C))
    node.prepared(A)
    node.prepared(B)
    ends = node.prepared(C, digest="other")
    assert orders(ends, Form) == []
    assert "holds behaviour-3 as other" in replans(ends)[0]
    assert node.regroup.apart() == ((A, C), (B, C))
    assert orders(node.wish((A, B), (C,)), Prepare) == [A, B]


def test_follower_without_the_leaders_weights_is_refused() -> None:
    node = Node(A, B)
    node.wish((A, B))
    node.prepared(A)
    ends = node.prepared(B, holds=((WeightsId(Version(2)), "old"),))
    assert "does not hold behaviour-3" in replans(ends)[0]
    assert orders(node.wish((A,), (B,)), Disband) == [A, B]


def test_members_that_prepared_for_other_members_are_refused() -> None:
    node = Node(A, B)
    node.wish((A, B))
    node.prepared(A)
    assert "received the members" in replans(node.prepared(B, members=(B, A)))[0]


def test_forward_is_relayed_to_the_followers_alone() -> None:
    node = Node(A, B, C)
    node.serve(A, B, C)
    assert relayed(node.forward(A)) == [B, C]
    node.done(A)
    assert relayed(node.forward(A, 1)) == [B, C]


def test_forward_sent_before_all_members_formed_is_relayed_once_they_have() -> None:
    node = Node(A, B)
    node.wish((A, B))
    node.prepare(A, B)
    node.receive(A, Formed(token=node.token(A)))
    assert node.forward(A) == []
    assert relayed(node.receive(B, Formed(token=node.token(B)))) == [B]


def test_forward_of_a_follower_or_out_of_turn_is_refused_and_counted() -> None:
    node = Node(A, B)
    node.serve(A, B)
    assert refusals(node.forward(B))
    assert refusals(node.forward(A, number=3))
    assert node.regroup.refused == 2


def test_planned_change_ends_the_crew_leader_first_so_no_forward_is_lost() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B)
    node.forward(A)
    assert orders(node.wish((A, B, C)), Disband) == [A]
    assert node.done(A) == []
    left = node.disbanded(A, token)
    assert orders(left, Disband) == [B]
    assert CloseStore(token) in left
    assert orders(node.disbanded(B, token), Prepare) == [A, B, C]
    node.prepare(A, B, C)
    node.connect(A, B, C)
    assert node.regroup.crews == ((A, B, C),)


def test_forward_announced_before_the_leader_saw_the_drain_is_still_relayed() -> None:
    node = Node(A, B)
    node.serve(A, B)
    node.wish((A,), (B,))
    assert relayed(node.forward(A)) == [B]


def test_notice_drains_the_crew_at_the_boundary_and_its_worker_is_in_no_crew_afterwards() -> None:
    node = Node(A, B, C)
    token = node.serve(A, B, C)
    noticed = node.note(node.regroup.noticed(B, node.now + 30, node.now))
    assert orders(noticed, Disband) == [A]
    assert replans(noticed) == [f"{B} goes in 30 s"]
    node.wish((A, C), (B,))
    for member in (A, B, C):
        last = node.disbanded(member, token)
    assert orders(last, Prepare) == [A, C]
    assert node.regroup.token(B) is None
    assert orders(node.wish((A, B), (C,)), Prepare) == []


def test_notice_while_forming_rolls_back() -> None:
    node = Node(A, B)
    node.wish((A, B))
    node.prepared(A)
    node.note(node.regroup.noticed(B, node.now + 30, node.now))
    assert orders(node.wish((A,), (B,)), Disband) == [A, B]
    assert node.regroup.is_settled


def test_two_crews_of_a_node_form_at_the_same_time_with_epochs_of_their_own() -> None:
    node = Node(A, B, C, D)
    node.wish((A, B), (C, D))
    assert node.token(A) != node.token(C)
    node.prepare(C, D)
    node.connect(C, D)
    assert node.regroup.crews == ((C, D),)
    node.prepare(A, B)
    node.connect(A, B)
    assert node.regroup.crews == ((A, B), (C, D))


def test_loss_in_one_crew_leaves_the_other_alone() -> None:
    node = Node(A, B, C, D)
    node.serve(A, B)
    node.serve(C, D)
    lost = node.gone(D)
    assert reports(lost) == [((A, B),)]
    assert orders(node.wish((A, B), (C,)), Disband) == [C]
    assert relayed(node.forward(A)) == [B]


def test_report_says_how_long_the_regroup_took_from_the_loss() -> None:
    node = Node(A, B, C)
    node.serve(A, B, C)
    node.gone(C)
    node.wish((A, B))
    node.now += 0.04
    node.prepare(A, B)
    report = next(action for action in node.connect(A, B) if isinstance(action, ReportCrews))
    assert abs(report.crewed.seconds - 0.04) < 1e-9
    assert report.crewed.epoch == 2


def test_newcomer_and_newly_held_weights_ask_for_a_layout() -> None:
    node = Node(A)
    assert replans(node.regroup.joined(B, node.now)) == [f"{B} joined"]
    assert replans(node.regroup.held(B, WEIGHTS, node.now)) == [f"{B} holds behaviour-3"]


def test_form_carries_store_and_members_in_order_of_rank() -> None:
    node = Node(A, B)
    node.wish((B, A))
    sent = [action.message for action in node.prepare(A, B) if isinstance(action, Send)]
    assert sent == [Form(token=GroupToken(NODE, 1), members=(B, A), store="/store")] * 2


def test_message_of_an_unknown_worker_is_refused() -> None:
    node = Node(A)
    assert refusals(node.receive(D, a_forward(GroupToken(NODE, 1)))) == ["it is gone"]
