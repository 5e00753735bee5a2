"""When slots that train help to roll out: one spot worker, one trainer, figures for mental arithmetic.

Both take a row-step in a tenth of a second at a full batch of ten rows: a step of a batch is 1 s, a sample of ten steps
takes 10 s. Figures are far from any threshold, so that the tests hold for other margins of the decision.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from scheduled_world import CURRENT, EXACT, request

from spotlight.control.directory import Directory, KnownWorker, PublishedSet
from spotlight.control.ledger import Ledger
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.tag import Assist, NextPart
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason, RequestId, SlotClass, Work

SPOT, TRAINS = WorkerId("spot"), WorkerId("trains")
ROWS, SPEED = 10, 10.0
VERY_LONG_S = 1000.0


class Cluster:
    """A gang of one beside one spot worker, and the requests that each received."""

    def __init__(self, previews_follow: bool = False, speed: float | None = SPEED, **pipeline: float) -> None:
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger, EXACT)
        self.directory = Directory()
        settings = PipelineConfig(**{"gap": True, **pipeline})
        self.assist = Assist(settings, self.directory, self.scheduler, previews_follow)
        self.received: dict[WorkerId, list[RequestId]] = {SPOT: [], TRAINS: []}
        self.now, self._speed = 0.0, speed
        for worker, trains in ((SPOT, False), (TRAINS, True)):
            self.directory.introduce(worker, KnownWorker(NodeId("node"), trains))
            self.scheduler.join(worker, SlotClass.RESERVED, ROWS, self.now)
            self.scheduler.holds(worker, [CURRENT])

    def issue(self, groups: int, size: int = ROWS, iteration: int = 0) -> list[list[RequestId]]:
        wanted = [
            [request(seed, group, iteration=iteration) for seed in range(size * group, size * group + size)]
            for group in range(groups)
        ]
        everything = [each for group in wanted for each in group]
        self.ledger.issue(everything)
        self.scheduler.add(everything)
        return [[each.id for each in group] for group in wanted]

    def pull(self, worker: WorkerId) -> None:
        self.assist.pull(worker, m.Pull(free_rows=ROWS, row_steps_per_s=self._speed), self.now)
        self.serve()

    def serve(self) -> None:
        self.assist.let_through(self.now)
        for assignment in self.scheduler.assign(self.now):
            self.received[assignment.worker] += [lease.request.id for lease in assignment.leases]

    def trains(self) -> None:
        """Train a part; the trainer pulls at once."""
        self.assist.train([TRAINS], self.now)
        self.pull(TRAINS)

    def waits(self, groups: Sequence[list[RequestId]], train_s: float | None = None) -> None:
        """Training needs these groups next; `train_s` of training remain after them."""
        self.assist.wait(lambda: NextPart(list(groups), 1, train_s, iteration=0), self.now)

    def announced(self, fetch_s: float) -> None:
        """Announce new weights, which the spot worker holds after `fetch_s` and the trainer at once."""
        self.directory.weights[CURRENT] = PublishedSet("digest", "", announced_at=self.now)
        self.directory.workers[SPOT].fetch_s = fetch_s
        self.scheduler.holds(SPOT, [])
        self.directory.holds(TRAINS, CURRENT, self.now)

    @property
    def helps(self) -> bool:
        return bool(self.received[TRAINS])


def test_trainer_gets_nothing_while_it_trains_and_works_while_it_waits() -> None:
    cluster = Cluster()
    groups = cluster.issue(8)
    cluster.pull(SPOT)
    cluster.trains()
    assert not cluster.helps
    cluster.waits(groups[:1])
    cluster.serve()
    assert cluster.helps


def test_order_to_train_takes_back_the_pull_of_a_trainer_that_found_no_work() -> None:
    cluster = Cluster()
    cluster.pull(TRAINS)
    cluster.assist.train([TRAINS], cluster.now)
    cluster.issue(8)
    cluster.serve()
    assert not cluster.helps


@dataclass(frozen=True)
class Case:
    """The state when the trainer has nothing to train on."""

    train_s: float | None = VERY_LONG_S
    """Seconds of training left after the next part; None if not measured yet."""
    elapsed_s: float = 0.0
    """Seconds since the spot worker began the first of its groups, which takes 10 s."""
    groups: int = 8
    size: int = ROWS
    part: int = 0
    """The group that training waits for; the spot worker holds number 0."""
    ahead: bool = False
    """Whether a group of the next iteration is queued."""
    fetch_s: float = 0.0
    previews_follow: bool = False
    switch_s: float = 0.0

    def helps(self) -> bool:
        cluster = Cluster(self.previews_follow, switch_s=self.switch_s)
        if self.fetch_s:
            cluster.announced(self.fetch_s)
        groups = cluster.issue(self.groups, self.size)
        cluster.pull(SPOT)
        cluster.now = self.elapsed_s
        cluster.trains()
        if self.ahead:
            cluster.issue(1, iteration=1)
        cluster.waits(groups[self.part : self.part + 1], self.train_s)
        cluster.serve()
        assert len(set(cluster.received[SPOT] + cluster.received[TRAINS])) == len(
            cluster.received[SPOT] + cluster.received[TRAINS]
        )
        return cluster.helps


WORTH_IT = {
    "what training takes is not known": Case(train_s=None),
    "rollouts take longer than training": Case(train_s=20.0),
    "training takes longest, but the others still fetch the weights": Case(fetch_s=5.0),
    "training takes longest, but the part takes the others two rounds": Case(size=2 * ROWS),
    "training takes longest, but no worker has begun the part": Case(part=1),
    "training takes longest, but what waits is of the next iteration": Case(groups=1, ahead=True),
    "training takes longest, but the others preview in the time they are spared": Case(previews_follow=True),
    "the bubble is longer than two changes of role and a step": Case(train_s=20.0, switch_s=2.0),
}
NOT_WORTH_IT = {
    "training takes longest": Case(),
    "the part is complete before a step would be": Case(train_s=20.0, elapsed_s=9.5),
    "the part is complete before a step would be, and previews follow": Case(previews_follow=True, elapsed_s=9.5),
    "the bubble is shorter than two changes of role": Case(train_s=20.0, switch_s=7.0),
}


@pytest.mark.parametrize("case", WORTH_IT.values(), ids=WORTH_IT)
def test_trainer_that_waits_is_given_rollouts_that_shorten_the_iteration(case: Case) -> None:
    assert case.helps()


@pytest.mark.parametrize("case", NOT_WORTH_IT.values(), ids=NOT_WORTH_IT)
def test_trainer_that_waits_is_given_nothing_that_would_delay_training(case: Case) -> None:
    assert not case.helps()


def test_trainer_helps_with_what_training_needs_first() -> None:
    cluster = Cluster()
    groups = cluster.issue(8)
    cluster.pull(SPOT)
    cluster.trains()
    cluster.waits(groups[1:2], VERY_LONG_S)
    cluster.serve()
    assert cluster.received[TRAINS] == groups[1]


def test_gang_helps_while_nothing_is_measured() -> None:
    cluster = Cluster(speed=None, switch_s=5.0)
    groups = cluster.issue(8)
    cluster.pull(TRAINS)
    cluster.waits(groups[:1], VERY_LONG_S)
    cluster.pull(SPOT)
    assert cluster.helps


def test_pull_that_stood_when_training_ended_is_decided_before_the_next_rollouts_are_assigned() -> None:
    cluster = Cluster()
    cluster.assist.train([TRAINS], cluster.now)
    cluster.assist.rest(cluster.now)
    cluster.pull(TRAINS)
    cluster.pull(SPOT)
    groups: list[list[RequestId]] = []
    cluster.assist.wait(lambda: NextPart(groups[:1], 1, VERY_LONG_S), cluster.now)
    groups += cluster.issue(8)
    cluster.serve()
    assert cluster.received[SPOT] == groups[0]
    assert not cluster.helps


def test_without_tag_the_gang_rolls_out_only_when_no_other_worker_may() -> None:
    cluster = Cluster(tag=False, gap=False)
    cluster.issue(8)
    cluster.pull(TRAINS)
    cluster.pull(SPOT)
    assert not cluster.helps
    cluster.scheduler.warn(SPOT, NoticeKind.IMMINENT, 1.0, cluster.now)
    cluster.serve()
    assert cluster.helps


def test_trainer_receives_previews_only_when_nothing_is_left_to_train() -> None:
    cluster = Cluster(previews_follow=True)
    helped, other = cluster.issue(2)
    previews = [request(seed, work=Work.PREVIEW, iteration=1) for seed in range(100, 150)]
    cluster.ledger.issue(previews)
    cluster.scheduler.add(previews)
    cluster.trains()
    cluster.waits([other], VERY_LONG_S)
    cluster.serve()
    assert cluster.received[TRAINS] == helped, "help with rollouts"
    cluster.pull(SPOT)
    cluster.pull(TRAINS)
    assert (cluster.received[SPOT], cluster.received[TRAINS]) == (other, helped), "only previews wait"
    cluster.assist.rest(cluster.now)
    cluster.serve()
    assert set(cluster.received[TRAINS]) > set(helped)


def test_without_gap_a_trainer_is_served_like_any_other_worker() -> None:
    cluster = Cluster(gap=False)
    groups = cluster.issue(8)
    cluster.pull(SPOT)
    cluster.waits(groups[:1], VERY_LONG_S)
    cluster.pull(TRAINS)
    assert cluster.helps


def test_pull_of_a_lost_worker_is_forgotten() -> None:
    cluster = Cluster()
    groups = cluster.issue(8)
    cluster.trains()
    cluster.scheduler.lose(TRAINS, ReleaseReason.LOST, cluster.now)
    cluster.directory.forget(TRAINS)
    cluster.waits(groups[:1])
    cluster.pull(SPOT)
    assert cluster.received[SPOT]
    assert not cluster.helps


def test_trainer_helps_where_the_spot_worker_neither_works_nor_pulls() -> None:
    """A crew's leader may hand back requests that it has not begun, and not pull again for a long time."""
    cluster = Cluster(switch_s=20.0)
    groups = cluster.issue(2)
    cluster.pull(SPOT)
    for each in groups[0]:
        cluster.scheduler.hand_back(SPOT, each, 1, 0, cluster.now)
    cluster.scheduler.pull(SPOT, m.Pull(free_rows=0, row_steps_per_s=SPEED), cluster.now)
    cluster.trains()
    cluster.waits(groups[:1])
    cluster.serve()
    assert cluster.helps


def test_trainers_are_starved_while_the_next_part_is_far_and_nothing_waits() -> None:
    for groups_issued, elapsed_s, starved in ((1, 0.0, True), (1, 9.5, False), (2, 0.0, False)):
        cluster = Cluster()
        groups = cluster.issue(groups_issued)
        cluster.pull(SPOT)
        cluster.trains()
        cluster.waits(groups[:1], 20.0)
        cluster.now = elapsed_s
        assert cluster.assist.is_starved(cluster.now) is starved
