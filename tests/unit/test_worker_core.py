"""A worker's decisions, driven by hand: messages and completions in, effects and messages out."""

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from spotlight.core import messages as m
from spotlight.core.crew_messages import AskNeighbour, Prepare
from spotlight.core.errors import ConfigError
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Policy, Request, RequestId, SlotClass, WeightsId, Work
from spotlight.node.loading_core import PATIENCE_S, KeepOwn, LoadingCore, TakeOwn, TakeStored
from spotlight.node.membership import CrewProblem, Follow
from spotlight.node.unloading import CommitFrame
from spotlight.node.worker_core import Effect, Exit, FailedRow, Obey, RunStep, StepDone, Wait, WorkerCore

ME = WorkerId("spot-1.1/0.1")
ROWS = 3


class Row(NamedTuple):
    request: RequestId
    attempt: int
    step: int = 4
    flight: bytes | None = b"flight"
    since: int = 0


class Engine:
    """Samples by request, each at its fourth step."""

    rows = ROWS

    def __init__(self) -> None:
        self.live: dict[RequestId, tuple[int, Work]] = {}
        self.refuses = False

    @property
    def free_rows(self) -> int:
        return ROWS - len(self.live)

    def admit(self, lease: m.Granted, flight: bytes | None) -> None:
        if self.refuses:
            raise ConfigError("no such prompt")
        self.live[lease.request.id] = (lease.attempt, lease.request.work)

    def withdraw(self, request: RequestId) -> Row | None:
        found = self.live.pop(request, None)
        return None if found is None else Row(request, found[0])

    def fence(self, request: RequestId, attempt: int) -> None:
        if request in self.live and self.live[request][0] == attempt:
            del self.live[request]

    def discard(self, work: Work) -> None:
        self.live = {request: row for request, row in self.live.items() if row[1] is not work}

    def progress(self) -> list[m.Progress]:
        return [m.Progress(request, attempt, 4) for request, (attempt, _) in self.live.items()]


class Sets:
    """A worker without weights."""

    def held(self) -> list[tuple[WeightsId, str]]:
        return []

    def drop(self, weights: WeightsId) -> None: ...

    def drop_own(self, weights: WeightsId) -> None: ...


class Crew:
    follows = False
    degree = 1
    paused_s = 0.0

    def __init__(self) -> None:
        self.problems: list[CrewProblem] = []

    def seconds_paused(self) -> float:
        return self.paused_s

    def apply(self, order: Any) -> Generator[Any, CrewProblem | None, None]:
        problem = yield Follow(order)
        if problem is not None:
            self.broke(problem)

    def broke(self, problem: CrewProblem) -> None:
        self.problems.append(problem)


class World:
    """The links of a core, and the core's life."""

    def __init__(self, trains: bool = False, between_devices: bool = False) -> None:
        self.inbox: deque[tuple[m.AnyMessage, bytes]] = deque()
        self.sent: list[m.AnyMessage] = []
        self.delivered: list[Any] = []
        self.engine, self.crew = Engine(), Crew()
        hello = m.Hello(
            schema=SCHEMA, code="", node=NodeId("spot-1.1"), slot_class=SlotClass.SPOT, rows=ROWS, pid=1, trains=trains
        )
        self.now = 0.0
        loading = LoadingCore(ME, Sets(), self.send, between_devices, clock=lambda: self.now)
        self.core = WorkerCore(ME, hello, self.engine, self.crew, loading, self)
        self.life = self.core.live()
        self.effect: Effect = next(self.life)

    def take(self) -> tuple[m.AnyMessage, bytes] | None:
        return self.inbox.popleft() if self.inbox else None

    def send(self, message: m.AnyMessage, blob: bytes = b"") -> None:
        self.sent.append(message)

    def commit(self, commits: Sequence[CommitFrame]) -> None:
        self.sent += [message for message, _ in commits]

    def deliver(self, finished: Sequence[Any]) -> None:
        self.delivered += finished

    def goes_on(self, *messages: m.AnyMessage, completion: object = None) -> list[m.AnyMessage]:
        """Complete the effect, with these messages in the inbox; return what was sent until the next effect."""
        self.inbox.extend((message, b"") for message in messages)
        before = len(self.sent)
        self.effect = self.life.send(completion)
        return self.sent[before:]


def lease(number: int, work: Work = Work.ROLLOUT) -> m.Granted:
    prompt = Prompt(text="a word")
    sample = Sample(prompt=prompt.id, seed=number, sampling=Sampling(steps=10, size=Size(8, 8)), version=Version(0))
    request = Request(work=work, iteration=0, group=0, sample=sample)
    return m.Granted(request=request, attempt=1, step=0, prompt=prompt, commit_every=2)


def grant(*leases: m.Granted) -> m.Grant:
    return m.Grant(leases=leases)


def requests_of(sent: Sequence[m.AnyMessage]) -> list[RequestId]:
    return [message.request for message in sent if isinstance(message, m.HandBack)]


def test_worker_joins_offers_its_rows_once_and_waits() -> None:
    world = World()
    assert [type(message) for message in world.sent] == [m.Hello, m.Pull]
    assert world.effect == Wait(None)
    assert world.goes_on() == []


def test_granted_samples_are_stepped_and_the_rows_left_are_offered() -> None:
    world = World()
    (pull,) = world.goes_on(grant(lease(1), lease(2)))
    assert isinstance(pull, m.Pull)
    assert (pull.free_rows, pull.answered) == (1, 1)
    assert world.effect == RunStep()


def test_step_posts_commits_delivers_results_and_reports_failures() -> None:
    world = World()
    world.goes_on(grant(lease(1), lease(2), lease(3)))
    first, second, third = list(world.engine.live)
    del world.engine.live[first], world.engine.live[third]
    done = StepDone(3, 0.1, finished=["picture"], commits=[Row(second, 1)], failed=[FailedRow(third, 1, "it raised")])
    commit, failed, pull = world.goes_on(completion=done)
    assert world.delivered == ["picture"]
    assert isinstance(commit, m.Commit)
    assert (commit.request, commit.step) == (second, 4)
    assert isinstance(failed, m.Failed)
    assert (failed.request, failed.problem) == (third, "it raised")
    assert isinstance(pull, m.Pull)
    assert pull.row_steps_per_s == pytest.approx(30.0)


def test_pull_reports_the_rows_that_take_as_long_as_the_smallest_batch_so_far() -> None:
    world = World()
    world.goes_on(grant(lease(1), lease(2), lease(3)))
    first, second, third = list(world.engine.live)
    for rows, step_s, expected in ((3, 0.3, 3.0), (1, 0.2, 2.0)):
        gone = first if rows == 3 else second
        del world.engine.live[gone]
        sent = world.goes_on(completion=StepDone(rows, step_s, failed=[FailedRow(gone, 1, "it raised")]))
        assert [each.saturating_rows for each in sent if isinstance(each, m.Pull)] == [pytest.approx(expected)]
    assert list(world.engine.live) == [third]


def test_step_that_a_broken_crew_did_not_take_changes_nothing() -> None:
    world = World()
    world.goes_on(grant(lease(1)))
    assert world.goes_on(completion=CrewProblem("a peer is gone")) == []
    assert world.crew.problems == [CrewProblem("a peer is gone")]
    assert world.effect == RunStep()


def test_leader_whose_crew_has_ended_offers_its_rows_again_with_its_own_speed() -> None:
    world = World()
    world.goes_on(grant(lease(1)))
    speeds = []
    for degree, step_s in ((1, 0.4), (2, 0.2), (1, 0.4)):
        world.crew.degree = degree
        sent = world.goes_on(completion=StepDone(2, step_s))
        speeds += [message.row_steps_per_s for message in sent if isinstance(message, m.Pull)]
    assert speeds == pytest.approx([10.0, 5.0])


def test_sample_that_cannot_start_is_reported_and_its_row_offered_again() -> None:
    world = World()
    world.engine.refuses = True
    failed, pull = world.goes_on(grant(lease(1)))
    assert isinstance(failed, m.Failed)
    assert (failed.problem, failed.exit_code) == ("no such prompt", ConfigError.exit_code)
    assert isinstance(pull, m.Pull)
    assert pull.free_rows == ROWS


def test_follower_hands_back_a_grant_that_crossed_its_order_and_offers_nothing() -> None:
    world = World()
    world.crew.follows = True
    sent = world.goes_on(grant(lease(1)))
    assert requests_of(sent) == [lease(1).request.id]
    assert [message.free_rows for message in sent if isinstance(message, m.Pull)] == []
    assert world.effect == Wait(None)


def test_paused_member_takes_no_step_until_its_time_has_passed() -> None:
    world = World()
    world.crew.paused_s = 2.5
    world.goes_on(grant(lease(1)))
    assert world.effect == Wait(2.5)
    world.crew.paused_s = 0.0
    world.goes_on()
    assert world.effect == RunStep()


def test_fenced_and_discarded_attempts_are_dropped_and_send_nothing() -> None:
    world = World()
    world.goes_on(grant(lease(1), lease(2, Work.PREVIEW)))
    sent = world.goes_on(
        m.Fenced(request=lease(1).request.id, attempt=1), m.Discard(work=Work.PREVIEW), completion=StepDone(2, 0.1)
    )
    assert requests_of(sent) == []
    assert world.engine.live == {}
    assert world.effect == Wait(None)


def test_fence_of_an_earlier_attempt_leaves_the_present_one() -> None:
    world = World()
    world.goes_on(grant(msgspec.structs.replace(lease(1), attempt=2)))
    world.goes_on(m.Fenced(request=lease(1).request.id, attempt=1), completion=StepDone(1, 0.1))
    assert list(world.engine.live) == [lease(1).request.id]


def test_recalled_samples_leave_with_their_flight() -> None:
    world = World()
    world.goes_on(grant(lease(1), lease(2)))
    back, pull = world.goes_on(m.Recall(requests=(lease(1).request.id,)), completion=StepDone(2, 0.1))
    assert isinstance(back, m.HandBack)
    assert (back.request, back.step) == (lease(1).request.id, 4)
    assert isinstance(pull, m.Pull)
    assert pull.free_rows == 2


TRAIN = m.Train(step=0, iteration=0, items=(), last=False)


def test_training_hands_all_samples_back_first_and_offers_no_rows_before_the_last_update() -> None:
    world = World(trains=True)
    world.goes_on(grant(lease(1), lease(2)))
    sent = world.goes_on(TRAIN, completion=StepDone(2, 0.1))
    assert len(requests_of(sent)) == 2
    assert world.effect == Obey(TRAIN)
    reply = m.Noted(problem="trained")
    assert world.goes_on(completion=reply) == [reply]
    assert world.effect == Wait(None)
    last = msgspec.structs.replace(TRAIN, last=True)
    world.goes_on(last)
    (pull,) = world.goes_on(completion=None)
    assert isinstance(pull, m.Pull)


def test_order_to_train_is_refused_without_the_role() -> None:
    with pytest.raises(TypeError, match="has no training role"):
        World().goes_on(TRAIN)


def test_drained_worker_hands_everything_back_and_exits() -> None:
    world = World()
    world.goes_on(grant(lease(1), lease(2)))
    sent = world.goes_on(m.Drain(), completion=StepDone(2, 0.1))
    assert len(requests_of(sent)) == 2
    assert world.effect == Exit()


def test_weights_and_crews_are_handled_by_the_driver_in_the_order_of_arrival() -> None:
    world = World()
    load = m.Load(weights=WeightsId(Version(1), Policy.BEHAVIOUR), digest="d", path="p")
    prepare = Prepare(token=("spot-1.1", 1), members=(ME,))
    world.goes_on(load, prepare)
    assert world.effect == TakeStored(load)
    assert world.goes_on(completion="d") == [m.Held(weights=load.weights, digest="d")]
    assert world.effect == Follow(prepare)
    world.goes_on(completion=CrewProblem("no peer connected"))
    assert world.crew.problems == [CrewProblem("no peer connected")]
    assert world.effect == Wait(None)


def test_neighbour_that_does_not_reply_is_waited_for_and_then_the_store_is_used() -> None:
    world = World(between_devices=True)
    load = m.Load(weights=WeightsId(Version(1), Policy.BEHAVIOUR), digest="d", path="p")
    assert world.goes_on(load) == [AskNeighbour(weights=load.weights, newcomer=ME)]
    assert world.effect == Wait(PATIENCE_S)
    world.crew.paused_s = 2 * PATIENCE_S
    world.now = 1.0
    world.goes_on()
    assert world.effect == Wait(PATIENCE_S - 1.0)
    world.now = PATIENCE_S
    world.goes_on()
    assert world.effect == TakeStored(load)
    assert world.goes_on(completion="d") == [m.Held(weights=load.weights, digest="d")]
    assert world.effect == Wait(2 * PATIENCE_S)


PUBLISH = m.Publish(weights=(WeightsId(Version(1)),))


@pytest.mark.parametrize(
    ("reply", "copies"),
    [
        (m.PublishedWeights(weights=WeightsId(Version(1)), digest="d", size=1, step=0), True),
        (None, True),
        (m.Failed(problem="the disk is full"), False),
    ],
    ids=["rank 0", "another rank", "failed"],
)
def test_every_rank_of_a_gang_applies_its_own_copy_of_published_weights(reply, copies) -> None:
    world = World(trains=True, between_devices=True)
    world.goes_on(PUBLISH)
    world.goes_on(completion=reply)
    if copies:
        assert world.effect == KeepOwn(WeightsId(Version(1)))
        *replies, pull = world.goes_on(completion=True)
        assert replies == [reply] * (reply is not None)
        assert isinstance(pull, m.Pull), "the controller has withdrawn the pull of before the order"
    sent = world.goes_on(m.Load(weights=WeightsId(Version(1)), digest="d", path="p"))
    assert (world.effect == TakeOwn(WeightsId(Version(1)))) is copies
    assert bool(sent) is not copies, "only a worker without a copy asks its neighbours"


def test_rank_with_a_share_of_the_weights_confirms_sets_that_it_never_applies() -> None:
    world = World(trains=True)
    world.core.rolls_out = False
    (held,) = world.goes_on(m.Load(weights=WeightsId(Version(1)), digest="d", path="p"))
    assert isinstance(held, m.Held)
    assert world.effect == Wait(None)
