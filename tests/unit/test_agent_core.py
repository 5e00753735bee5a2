"""An agent's decisions, driven by hand: relays, the order of ends and starts, scores, drains."""

import math

import pytest
from agent_stories import BROKEN, FIRST, GOOD, NEXT, NODE, SECOND, WEIGHTS, Node, lease, result

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.crew_messages import AskNeighbour, Demand, Offered, Prepare
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Work
from spotlight.node.judge import VERDICTS_S
from spotlight.node.notices.notice import Notice

# --- messages ---


def test_slots_start_when_the_machine_has_booted():
    node = Node(slots=2, boot_s=5.0)
    assert node.started == []
    node.advance(5.0)
    assert node.started == [FIRST, SECOND]


def test_message_of_the_controller_goes_to_one_worker_or_to_all_and_not_to_one_that_is_gone():
    node = Node(slots=2)
    recall = m.Recall(requests=())
    node.core.from_controller(SECOND, recall, b"")
    assert node.inbox == {FIRST: [], SECOND: [recall]}
    node.core.from_controller(None, m.Discard(work=Work.PREVIEW), b"")
    assert [len(node.inbox[worker]) for worker in (FIRST, SECOND)] == [1, 2]
    node.core.ended(SECOND, "exited")
    node.core.from_controller(SECOND, recall, b"")
    node.core.from_controller(None, recall, b"")
    assert [len(node.inbox[worker]) for worker in (FIRST, SECOND)] == [2, 2]


def test_notice_reaches_the_controller_with_the_time_left_and_its_withdrawal_too():
    node = Node()
    node.advance(100.0)
    node.core.warned(Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=130.0))
    assert node.sent[-1] == (None, m.Warned(kind=NoticeKind.IMMINENT, seconds=30.0))
    node.core.warned(Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=130.0, withdrawn=True))
    assert node.sent[-1] == (None, m.Warned(kind=NoticeKind.IMMINENT, seconds=30.0, withdrawn=True))


def test_notice_of_one_source_stays_in_force_when_another_source_withdraws_its_own():
    node = Node()
    node.core.warned(Notice(kind=NoticeKind.IMMINENT, source="pool", deadline=30.0))
    node.core.warned(Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=10.0))
    node.core.warned(Notice(kind=NoticeKind.IMMINENT, source="aws", deadline=10.0, withdrawn=True))
    assert node.reported(m.Warned)[-1] == m.Warned(kind=NoticeKind.IMMINENT, seconds=30.0)
    node.core.warned(Notice(kind=NoticeKind.ADVISORY, source="aws"))
    assert len(node.reported(m.Warned)) == 3


def test_request_for_weights_goes_to_a_neighbour_that_holds_them_and_the_offer_back():
    node = Node(slots=2)
    node.hello(FIRST, SECOND)
    asked = AskNeighbour(weights=WEIGHTS, newcomer=SECOND)
    node.core.from_worker(SECOND, asked)
    assert node.inbox[SECOND] == [Offered(weights=WEIGHTS, newcomer=SECOND)], "no neighbour holds them"
    node.core.from_worker(FIRST, m.Held(weights=WEIGHTS, digest="d1"))
    node.core.from_worker(SECOND, asked)
    assert node.inbox[FIRST] == [asked]
    offered = Offered(weights=WEIGHTS, newcomer=SECOND)
    node.core.from_worker(FIRST, offered, b"handles")
    assert node.inbox[SECOND][-1] == offered
    assert not node.reported(AskNeighbour)
    assert not node.reported(Offered)


def test_crew_is_ordered_only_where_more_than_one_layout_is_possible():
    elastic = {"speed_ups": [(48, 2, 1.9)], "measure": False, "hysteresis_s": 0.0}
    for degrees, is_ordered in (("auto", True), ((1,), False)):
        config = ElasticConfig.model_validate({**elastic, "degrees": degrees})
        node = Node(slots=2, heads=2, elastic=config)
        node.hello(FIRST, SECOND)
        for worker in (FIRST, SECOND):
            node.core.from_worker(worker, m.Held(weights=WEIGHTS, digest="d1"))
        node.grant(FIRST, lease(1))
        node.core.from_controller(None, Demand(waiting=(), pressing=False), b"")
        node.advance(1.0)
        assert any(isinstance(message, Prepare) for message in node.inbox[FIRST]) is is_ordered


# --- results ---


def test_result_is_sent_when_it_is_scored():
    node, rollout, preview = Node(), lease(1), lease(2, Work.PREVIEW)
    node.grant(FIRST, rollout, preview)
    for granted in (rollout, preview):
        node.finish(FIRST, granted)
    assert [granted for _, granted in node.scoring] == [rollout, preview]
    assert not node.reported(m.Result)
    for scoring, _ in node.scoring:
        node.core.judged(scoring, GOOD)
    assert node.sent[-2:] == [
        (FIRST, result(rollout, score=GOOD.score)),
        (FIRST, result(preview, score=GOOD.score)),
    ]


def test_result_without_a_lease_or_a_picture_is_sent_unscored_with_the_reason():
    node, known = Node(), lease(1)
    node.finish(FIRST, known)
    node.grant(FIRST, known)
    node.finish(FIRST, known, BROKEN)
    unknown, broken = node.reported(m.Result)
    assert math.isnan(unknown.score.reward)
    assert "holds no lease" in unknown.problem
    assert math.isnan(broken.score.reward)
    assert broken.problem == "the picture is broken."
    assert node.scoring == []


@pytest.mark.parametrize("ends", [m.Fenced, m.HandBack, m.Result])
def test_result_of_an_attempt_that_has_ended_here_is_dropped_and_the_next_attempt_counts(ends):
    node, known, again = Node(), lease(1), lease(1, attempt=2)
    node.grant(FIRST, known)
    if ends is m.Fenced:
        node.core.from_controller(FIRST, m.Fenced(request=known.request.id, attempt=1), b"")
    elif ends is m.HandBack:
        node.core.from_worker(FIRST, m.HandBack(request=known.request.id, attempt=1, step=3))
    else:
        node.finish(FIRST, known)
    begun = list(node.scoring)
    node.finish(FIRST, known)
    assert (node.scoring, node.reported(m.Result)) == (begun, [])
    node.grant(FIRST, again)
    node.finish(FIRST, again)
    assert [granted for _, granted in node.scoring[len(begun) :]] == [again]


def test_result_of_a_worker_that_has_ended_is_dropped_so_that_it_does_not_overtake_the_report_of_its_end():
    node, known = Node(), lease(1)
    node.hello(FIRST)
    node.grant(FIRST, known)
    node.core.ended(FIRST, "killed by SIGKILL", was_killed=True)
    node.finish(FIRST, known)
    assert node.reported(m.Result) == []


# --- ends of workers ---


def test_gone_of_a_worker_follows_its_verdicts_and_precedes_its_successor():
    node, first, second = Node(), lease(1), lease(2)
    node.hello(FIRST)
    node.grant(FIRST, first, second)
    node.finish(FIRST, first)
    node.finish(FIRST, second)
    node.core.ended(FIRST, "killed by SIGKILL", was_killed=True)
    (one, _), (other, _) = node.scoring
    node.core.judged(one, GOOD)
    assert not node.reported(m.Gone)
    node.advance(VERDICTS_S / 2)
    node.core.judged(other, GOOD)
    assert node.reported(m.Gone) == [m.Gone(worker=FIRST, cause="killed by SIGKILL")]
    assert isinstance(node.sent[-1][1], m.Gone)
    assert node.started == [FIRST]
    node.advance(0.1)
    assert node.started == [FIRST, NEXT]
    node.advance(2 * VERDICTS_S)
    assert len(node.reported(m.Gone)) == 1


def test_verdict_that_takes_too_long_does_not_delay_gone_and_is_still_sent():
    node, slow = Node(), lease(1)
    node.grant(FIRST, slow)
    node.finish(FIRST, slow)
    node.core.ended(FIRST, "exited")
    node.advance(VERDICTS_S)
    assert [type(message) for _, message in node.sent][-1] is m.Gone
    node.advance(1.0)
    node.core.judged(node.scoring[0][0], GOOD)
    assert [type(message) for _, message in node.sent][-1] is m.Result
    assert len(node.reported(m.Gone)) == 1


def test_pause_before_the_next_worker_doubles_per_failed_start_and_starts_again_after_a_kill():
    node = Node(first_pause_s=0.125, longest_pause_s=0.5)
    pauses, number = [], 1
    for was_killed in (False, False, False, True):
        worker = WorkerId(f"{NODE}/0.{number}")
        node.hello(worker)
        node.core.ended(worker, "ended", was_killed)
        pauses.append(0.0)
        while len(node.started) == number:
            node.advance(0.125)
            pauses[-1] += 0.125
        number += 1
    assert pauses == [0.25, 0.5, 0.5, 0.125]
    assert node.started[-1] == WorkerId(f"{NODE}/0.5")


def test_worker_that_ran_for_long_did_not_fail_to_start_and_one_killed_before_its_hello_did():
    node = Node()
    node.advance(21.0)
    node.core.ended(FIRST, "exited with status 1")
    node.advance(0.1)
    assert node.started == [FIRST, NEXT]
    node.core.ended(NEXT, "killed by SIGKILL", was_killed=True)
    node.advance(0.15)
    assert len(node.started) == 2
    node.advance(0.05)
    assert len(node.started) == 3


def test_silent_worker_is_killed_and_its_cause_is_reported():
    node = Node(slots=2, silence_s=10.0, start_s=100.0)
    node.hello(FIRST)
    for _ in range(4):
        node.advance(4.0)
        node.core.from_worker(FIRST, m.Alive(progress=(), spans=()))
    assert node.killed == [], "the other worker still starts"
    node.advance(10.5)
    assert node.killed == [], "its second chance"
    node.advance(0.6)
    assert node.killed == [FIRST]
    node.core.ended(FIRST, "killed by SIGKILL", was_killed=True)
    assert node.reported(m.Gone) == [m.Gone(worker=FIRST, cause="silent for 10 s")]
    node.advance(90.0)
    assert SECOND in node.killed


def test_worker_whose_messages_wait_for_the_controller_is_not_silent():
    node = Node(silence_s=10.0, start_s=100.0)
    node.hello(FIRST)
    node.relaying.add(FIRST)
    node.advance(60.0)
    assert node.killed == []
    node.relaying.clear()
    node.advance(2.0)
    assert node.killed == [FIRST]


def test_all_workers_up_is_reported_once_per_complete_start():
    node = Node(slots=2)
    node.hello(FIRST)
    assert node.times_all_started == 0
    node.hello(SECOND)
    assert node.times_all_started == 1
    node.core.ended(FIRST, "exited", was_killed=True)
    node.advance(1.0)
    node.hello(NEXT)
    assert node.times_all_started == 2


# --- drain ---


def test_drained_node_starts_no_worker_and_ends_when_the_last_one_is_gone():
    node = Node(slots=2)
    node.core.from_controller(None, m.Drain(), b"")
    assert node.inbox == {FIRST: [m.Drain()], SECOND: [m.Drain()]}
    node.core.ended(FIRST, "exited")
    node.advance(10.0)
    assert node.ends == []
    node.core.ended(SECOND, "exited")
    assert node.ends == [""]
    assert len(node.reported(m.Gone)) == 2
    node.advance(100.0)
    assert node.started == [FIRST, SECOND]
    assert node.killed == []


def test_drain_of_one_worker_is_only_relayed():
    node = Node()
    node.core.from_controller(FIRST, m.Drain(), b"")
    assert node.inbox[FIRST] == [m.Drain()]
    node.core.ended(FIRST, "exited")
    node.advance(1.0)
    assert node.started == [FIRST, NEXT]


def test_worker_that_is_late_in_a_drain_is_killed():
    node = Node(slots=2, drain_s=20.0)
    node.core.drain()
    node.core.ended(FIRST, "exited")
    node.advance(19.0)
    assert node.killed == []
    node.advance(1.0)
    assert node.killed == [SECOND]
    node.core.ended(SECOND, "killed by SIGKILL")
    assert node.ends == [""]


@pytest.mark.parametrize("state", ["booting", "paused", "not begun"])
def test_drain_ends_a_node_without_workers_at_once(state):
    node = Node(boot_s=5.0 if state == "booting" else 0.0, begins=state != "not begun")
    if state == "paused":
        node.core.ended(FIRST, "exited")
    node.core.drain()
    assert node.ends == [""]
    if state == "not begun":
        node.core.begin()
    node.advance(100.0)
    assert node.started == ([FIRST] if state == "paused" else [])


def test_worker_born_during_a_drain_is_drained_and_the_last_verdict_comes_before_the_end():
    node, late = Node(is_slow=True), lease(1)
    node.core.drain()
    node.born(FIRST)
    assert node.inbox[FIRST] == [m.Drain()]
    node.grant(FIRST, late)
    node.finish(FIRST, late)
    node.core.ended(FIRST, "exited")
    assert node.ends == []
    node.core.judged(node.scoring[0][0], GOOD)
    assert [type(message) for _, message in node.sent][-2:] == [m.Result, m.Gone]
    assert node.ends == [""]


def test_node_that_is_gone_does_nothing_more():
    node, known = Node(slots=2, silence_s=1.0), lease(1)
    node.grant(FIRST, known)
    node.finish(FIRST, known)
    node.core.ended(SECOND, "exited")
    sent = list(node.sent)
    node.core.leave()
    node.core.judged(node.scoring[0][0], GOOD)
    node.finish(FIRST, known)
    node.core.from_controller(FIRST, m.Recall(requests=()), b"")
    node.advance(100.0)
    assert (node.sent, node.killed, len(node.started)) == (sent, [], 2)
