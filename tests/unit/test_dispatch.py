"""The dispatcher outside storms: what makes it end the run, and what it records."""

import pytest
from dispatch_stories import NoPayloads, dispatcher_with

from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import SampleState
from spotlight.control.scheduler.state import Standing
from spotlight.control.setbacks import LOSSES_ALLOWED, TROUBLES_ALLOWED
from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.events import SCHEMA, AnyEvent, NoticeGiven, NoticeWithdrawn, ProblemNoted, WorkerLost
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason, Request, SlotClass, WeightsId, Work


@pytest.mark.parametrize("slot_class", list(SlotClass))
def test_nodes_that_repeatedly_report_failure_end_the_run_with_their_reason(slot_class):
    dispatcher, node = dispatcher_with(slot_class)
    for life in range(TROUBLES_ALLOWED[slot_class]):
        assert dispatcher.failure is None
        # Before its Hello, as a worker that cannot load its model does.
        worker = WorkerId(f"{node}/0.{life + 1}")
        failed = m.Failed(problem="the weights file is truncated", fatal=True)
        dispatcher.handle(node, m.Envelope(worker, failed), now=float(life))
    assert "the weights file is truncated" in str(dispatcher.failure)


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_run_that_nodes_end_has_the_exit_code_of_their_error(code):
    dispatcher, node = dispatcher_with(SlotClass.RESERVED)
    while dispatcher.failure is None:
        failed = m.Failed(problem="no CUDA device", fatal=True, exit_code=code)
        dispatcher.handle(node, m.Envelope(WorkerId(f"{node}/0.1"), failed), now=0.0)
    assert dispatcher.failure.exit_code == code


def test_problem_of_a_node_is_journaled_with_its_source():
    events = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, emit=events.append)
    dispatcher.handle(node, m.Envelope(None, m.Failed(problem="no room in shared memory")), now=0.0)
    dispatcher.handle(node, m.Envelope(None, m.Noted(problem="weights go to the disk")), now=0.0)
    assert [event for event in events if isinstance(event, ProblemNoted)] == [
        ProblemNoted(source=node, problem="no room in shared memory"),
        ProblemNoted(source=node, problem="weights go to the disk"),
    ]
    assert dispatcher.failure is None


def test_remark_that_every_incarnation_of_a_node_makes_is_journaled_once():
    events = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, emit=events.append)
    for incarnation in ("1", "2", "3"):
        named = NodeId(f"{node.rpartition('.')[0]}.{incarnation}")
        dispatcher.handle(named, m.Envelope(None, m.Noted(problem="weights go to the disk")), now=0.0)
    assert [event.source for event in events if isinstance(event, ProblemNoted)] == [node]


def test_end_of_a_worker_ends_its_files_of_flights_except_the_parts_that_are_needed():
    class Files(NoPayloads):
        def writer_gone(self, writer, needed):
            gone.append((writer, dict(needed())))

    gone: list[tuple[str, dict[str, int]]] = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, Files())
    worker, needed = WorkerId(f"{node}/0.1"), BlobRef(kind=BlobKind.FLIGHT, path="flights/x", digest="", size=1)
    dispatcher.flights.keep("rollout/0/0/1", 2, needed)
    dispatcher.handle(node, m.Envelope(None, m.Gone(worker=worker, cause="killed")), now=1.0)
    assert gone == [(worker, {"flights/x": 1})]


def test_commit_that_builds_on_a_lost_one_is_not_counted_and_the_whole_flight_is_requested():
    """The controller does not count on a lost part: until the hand-back, the sample resumes from the earlier commit."""
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    weights, prompt = WeightsId(Version(0)), Prompt(text="a word")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    first, second = WorkerId(f"{node}/0.1"), WorkerId(f"{node}/0.2")
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0])

    def flight(step: int) -> BlobRef:
        return BlobRef(kind=BlobKind.FLIGHT, path="flights", digest="", size=step, offset=step)

    def receive(worker: WorkerId, message: m.AnyMessage) -> list[m.AnyMessage]:
        dispatcher.take_outbox()
        dispatcher.handle(node, m.Envelope(worker, message), now=1.0)
        return [out.message for out in dispatcher.take_outbox()]

    def join(worker: WorkerId) -> m.Grant:
        hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
        receive(worker, hello)
        receive(worker, m.Held(weights=weights, digest="base"))
        (grant,) = receive(worker, m.Pull(free_rows=1))
        return grant

    def commit(step: int, since: int = 0) -> m.Commit:
        return m.Commit(request=request.id, attempt=1, step=step, since=since, flight=flight(step))

    join(first)
    assert receive(first, commit(2)) == []
    assert receive(first, commit(6, since=4)) == [m.Recall(requests=(request.id,))]
    dispatcher.handle(node, m.Envelope(None, m.Gone(worker=first, cause="killed")), now=2.0)
    (lease,) = join(second).leases
    assert (lease.attempt, lease.step, lease.flight) == (2, 2, (flight(2),))
    receive(second, m.HandBack(request=request.id, attempt=2, step=7, flight=flight(7)))
    (grant,) = receive(second, m.Pull(free_rows=1))
    (lease,) = grant.leases
    assert (lease.attempt, lease.step, lease.flight) == (3, 7, (flight(7),))


def test_sample_that_is_repeatedly_made_with_other_weights_is_given_up():
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    weights, prompt = WeightsId(Version(0)), Prompt(text="a word")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0])
    attempts = 0
    while dispatcher.ledger.state(request.id) is not SampleState.DROPPED:
        attempts += 1
        assert attempts < 100, "the loop has an end"
        worker = WorkerId(f"{node}/0.{attempts}")
        hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
        result = m.Result(request=request.id, attempt=attempts, digest="other", steps=10)
        for message in (hello, m.Held(weights=weights, digest="base"), m.Pull(free_rows=1), result):
            dispatcher.take_outbox()
            dispatcher.handle(node, m.Envelope(worker, message), now=1.0)
        assert m.Drain() in [out.message for out in dispatcher.take_outbox()]
        dispatcher.handle(node, m.Envelope(None, m.Gone(worker=worker, cause="drained")), now=2.0)
    assert attempts > 1


def test_rollout_that_arrives_without_its_tensors_is_made_again_and_never_accepted():
    """Training would fail on it, iterations later."""
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    weights, prompt = WeightsId(Version(0)), Prompt(text="a word")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0])
    worker = WorkerId(f"{node}/0.1")
    hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
    for message in (hello, m.Held(weights=weights, digest="base")):
        dispatcher.handle(node, m.Envelope(worker, message), now=1.0)
    for attempt, score in ((1, None), (2, m.Score(reward=1.0))):
        dispatcher.handle(node, m.Envelope(worker, m.Pull(free_rows=1)), now=2.0)
        bare = m.Result(request=request.id, attempt=attempt, digest="base", steps=10, score=score)
        dispatcher.handle(node, m.Envelope(worker, bare), now=3.0)
        assert dispatcher.ledger.state(request.id) is SampleState.QUEUED
    dispatcher.handle(node, m.Envelope(worker, m.Pull(free_rows=1)), now=4.0)
    assert dispatcher.ledger.state(request.id) is SampleState.LEASED


def test_repeated_pull_that_arrives_late_does_not_take_back_the_offer_that_followed_it():
    """The worker does not repeat its offer, so it would wait for ever."""
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    weights, prompt, worker = WeightsId(Version(0)), Prompt(text="a word"), WorkerId(f"{node}/0.1")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
    follower = m.Pull(free_rows=0, answered=0, number=1)
    alone = m.Pull(free_rows=1, answered=0, number=2)
    for message in (hello, m.Held(weights=weights, digest="base"), follower, alone, follower):
        dispatcher.handle(node, m.Envelope(worker, message), now=1.0)
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0])
    dispatcher.serve(2.0)
    assert dispatcher.ledger.state(request.id) is SampleState.LEASED


def test_worker_with_other_kernels_than_the_first_is_refused_and_reported():
    events = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, emit=events.append)

    def join(number: int, kernels: str) -> list[m.AnyMessage]:
        hello = m.Hello(
            schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=number, kernels=kernels
        )
        dispatcher.take_outbox()
        dispatcher.handle(node, m.Envelope(WorkerId(f"{node}/0.{number}"), hello), now=1.0)
        return [out.message for out in dispatcher.take_outbox()]

    join(1, "compiled, cudnn attention")
    assert m.Drain() in join(2, "")
    join(3, "compiled, cudnn attention")
    assert sorted(dispatcher.directory.workers) == [f"{node}/0.1", f"{node}/0.3"]
    problems = [event.problem for event in events if isinstance(event, ProblemNoted)]
    assert any("other kernels (not compiled) than this run (compiled, cudnn attention)" in each for each in problems)


@pytest.mark.parametrize("work", [Work.ROLLOUT, Work.PREVIEW])
def test_sample_with_which_workers_always_die_is_given_up_and_recorded(work):
    """The ledger records the drop of a rollout and nothing of a single preview."""
    events: list[AnyEvent] = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, emit=events.append)
    weights, prompt = WeightsId(Version(0)), Prompt(text="a word")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=work, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0] if work is Work.ROLLOUT else [])
    for attempt in range(LOSSES_ALLOWED):
        assert dispatcher.ledger.state(request.id) is SampleState.QUEUED
        worker = WorkerId(f"{node}/0.{attempt}")
        hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
        for message in (hello, m.Held(weights=weights, digest="base"), m.Pull(free_rows=1)):
            dispatcher.handle(node, m.Envelope(worker, message), now=1.0)
        assert dispatcher.ledger.holder(request.id) == worker
        dispatcher.handle(node, m.Envelope(None, m.Gone(worker=worker, cause="killed")), now=2.0)
    assert dispatcher.ledger.state(request.id) is SampleState.DROPPED
    noted = [event.problem for event in events if isinstance(event, ProblemNoted)]
    given_up = f"the sample {request.id} is given up and not ranked: {LOSSES_ALLOWED} workers died while making it"
    assert noted == ([given_up] if work is Work.PREVIEW else [])


@pytest.mark.parametrize("warms_up", [True, False])
def test_worker_that_compiles_its_forward_is_no_hung_one(warms_up):
    """An idle neighbour would finish the stalled sample sooner, so it is recalled; its step cannot end before."""
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    weights, prompt = WeightsId(Version(0)), Prompt(text="a word")
    dispatcher.publish(weights, PublishedSet("base", ""), [])
    sample = Sample(prompt=prompt.id, seed=1, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
    dispatcher.issue([request], [prompt], [0])
    slow, idle = WorkerId(f"{node}/0.1"), WorkerId(f"{node}/1.1")
    for worker in (slow, idle):
        hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1)
        for message in (hello, m.Held(weights=weights, digest="base"), m.Pull(free_rows=1, row_steps_per_s=1.0)):
            dispatcher.handle(node, m.Envelope(worker, message), now=0.0)
    beat = m.Alive(progress=(m.Progress(request.id, 1, 0),), warms_up=warms_up)
    for second in range(1, 60):
        if slow in dispatcher.directory.workers:
            dispatcher.handle(node, m.Envelope(slow, beat), now=float(second))
        dispatcher.handle(node, m.Envelope(idle, m.Alive()), now=float(second))
        dispatcher.tick(float(second))
    assert (slow in dispatcher.directory.workers) is warms_up


IMMINENT, ADVISORY = NoticeKind.IMMINENT, NoticeKind.ADVISORY


def noticed_story() -> tuple[Dispatcher, NodeId, list[AnyEvent]]:
    events: list[AnyEvent] = []
    dispatcher, node = dispatcher_with(SlotClass.SPOT, emit=events.append)
    return dispatcher, node, events


def joins(dispatcher: Dispatcher, node: NodeId, name: str, now: float) -> WorkerId:
    worker = WorkerId(f"{node}/{name}")
    hello = m.Hello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, rows=1, pid=1, trains=False)
    dispatcher.handle(node, m.Envelope(worker, hello), now)
    return worker


def warn(dispatcher: Dispatcher, node: NodeId, warned: m.Warned, now: float) -> None:
    dispatcher.handle(node, m.Envelope(None, warned), now)


def test_notice_of_a_node_holds_for_a_worker_that_joins_under_it_with_the_time_left():
    dispatcher, node, events = noticed_story()
    warn(dispatcher, node, m.Warned(kind=IMMINENT, seconds=30.0), 10.0)
    worker = joins(dispatcher, node, "0.2", 15.0)
    assert events[-1] == NoticeGiven(worker=worker, kind=IMMINENT, seconds=25.0)
    assert dispatcher.scheduler.standing(worker) is Standing.LEAVING
    dispatcher.worker_lost(worker, "killed", ReleaseReason.LOST, 20.0)
    assert events[-1] == WorkerLost(worker=worker, cause="killed", noticed=True)


def test_withdrawn_notice_frees_the_workers_of_the_node_and_those_that_join_later():
    dispatcher, node, events = noticed_story()
    first = joins(dispatcher, node, "0.1", 0.0)
    warn(dispatcher, node, m.Warned(kind=IMMINENT, seconds=30.0), 10.0)
    warn(dispatcher, node, m.Warned(kind=IMMINENT, seconds=20.0, withdrawn=True), 20.0)
    assert events[-1] == NoticeWithdrawn(worker=first)
    assert dispatcher.scheduler.serves(first)
    assert dispatcher.scheduler.serves(joins(dispatcher, node, "1.1", 21.0))
    dispatcher.worker_lost(first, "killed", ReleaseReason.LOST, 25.0)
    assert events[-1] == WorkerLost(worker=first, cause="killed", noticed=False)


def test_advisory_notice_without_a_time_is_recorded_without_one():
    dispatcher, node, events = noticed_story()
    worker = joins(dispatcher, node, "0.1", 0.0)
    warn(dispatcher, node, m.Warned(kind=ADVISORY, seconds=None), 10.0)
    assert events[-1] == NoticeGiven(worker=worker, kind=ADVISORY, seconds=None)
    assert dispatcher.scheduler.standing(worker) is Standing.PREVIEWS_ONLY
