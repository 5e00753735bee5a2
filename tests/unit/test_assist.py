"""When the slots that train help to roll out: one spot worker, one that trains, arithmetic for the head.

Both take a row-step in a tenth of a second at a full batch of ten rows: a step of a batch is 1 s, a sample of ten steps
takes 10 s. Figures are far from any threshold, so that the stories hold for other margins of the decision.
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
from spotlight.core.events import ReleaseReason
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, RequestId, SlotClass

SPOT, TRAINS = WorkerId("spot"), WorkerId("trains")
ROWS, SPEED = 10, 10.0
VERY_LONG_S = 1000.0


class Tale:
    """A gang of one beside one spot worker, and what they were given."""

    def __init__(self, previews_follow: bool = False, speed: float | None = SPEED, **pipeline: float) -> None:
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger, EXACT)
        self.directory = Directory()
        settings = PipelineConfig(**{"gap": True, **pipeline})
        self.assist = Assist(settings, self.directory, self.scheduler, previews_follow)
        self.given: dict[WorkerId, list[RequestId]] = {SPOT: [], TRAINS: []}
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

    def asks(self, worker: WorkerId) -> None:
        self.assist.pull(worker, m.Pull(free_rows=ROWS, row_steps_per_s=self._speed), self.now)
        self.serve()

    def serve(self) -> None:
        self.assist.let_through(self.now)
        for assignment in self.scheduler.assign(self.now):
            self.given[assignment.worker] += [lease.request.id for lease in assignment.leases]

    def trains(self) -> None:
        """A part is trained, and the trainer asks for work at once."""
        self.assist.train([TRAINS], self.now)
        self.asks(TRAINS)

    def waits(self, groups: Sequence[list[RequestId]], train_s: float | None = None) -> None:
        """Training needs these groups next, and `train_s` are left to train then."""
        self.assist.wait(lambda: NextPart(list(groups), 1, train_s, iteration=0), self.now)

    def announced(self, fetch_s: float) -> None:
        """New weights, which the spot worker holds after `fetch_s` and the other one at once."""
        self.directory.weights[CURRENT] = PublishedSet("digest", "", announced_at=self.now)
        self.directory.workers[SPOT].fetch_s = fetch_s
        self.scheduler.holds(SPOT, [])
        self.directory.holds(TRAINS, CURRENT, self.now)

    @property
    def helps(self) -> bool:
        return bool(self.given[TRAINS])


def test_trainer_gets_nothing_while_it_trains_and_works_while_it_waits() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.trains()
    assert not tale.helps
    tale.waits(groups[:1])
    tale.serve()
    assert tale.helps


def test_order_to_train_takes_back_the_pull_of_a_trainer_that_found_no_work() -> None:
    tale = Tale()
    tale.asks(TRAINS)
    tale.assist.train([TRAINS], tale.now)
    tale.issue(8)
    tale.serve()
    assert not tale.helps


@dataclass(frozen=True)
class Case:
    """What the trainer finds when it has nothing to train on."""

    train_s: float | None = VERY_LONG_S
    """Left to train after the next part; None: not measured yet."""
    elapsed_s: float = 0.0
    """Since the spot worker began the first of its groups, which takes 10 s."""
    groups: int = 8
    size: int = ROWS
    part: int = 0
    """The group that training waits for; the spot worker holds number 0."""
    ahead: bool = False
    """Whether a group of the next iteration waits."""
    fetch_s: float = 0.0
    previews_follow: bool = False
    switch_s: float = 0.0

    def helps(self) -> bool:
        tale = Tale(self.previews_follow, switch_s=self.switch_s)
        if self.fetch_s:
            tale.announced(self.fetch_s)
        groups = tale.issue(self.groups, self.size)
        tale.asks(SPOT)
        tale.now = self.elapsed_s
        tale.trains()
        if self.ahead:
            tale.issue(1, iteration=1)
        tale.waits(groups[self.part : self.part + 1], self.train_s)
        tale.serve()
        assert len(set(tale.given[SPOT] + tale.given[TRAINS])) == len(tale.given[SPOT] + tale.given[TRAINS])
        return tale.helps


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
    tale = Tale()
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.trains()
    tale.waits(groups[1:2], VERY_LONG_S)
    tale.serve()
    assert tale.given[TRAINS] == groups[1]


def test_before_anything_is_measured_the_gang_helps() -> None:
    tale = Tale(speed=None, switch_s=5.0)
    groups = tale.issue(8)
    tale.asks(TRAINS)
    tale.waits(groups[:1], VERY_LONG_S)
    tale.asks(SPOT)
    assert tale.helps


def test_pull_that_stood_when_training_ended_is_decided_about_before_the_next_rollouts_are_given() -> None:
    tale = Tale()
    tale.assist.train([TRAINS], tale.now)
    tale.assist.rest(tale.now)
    tale.asks(TRAINS)
    tale.asks(SPOT)
    groups: list[list[RequestId]] = []
    tale.assist.wait(lambda: NextPart(groups[:1], 1, VERY_LONG_S), tale.now)
    groups += tale.issue(8)
    tale.serve()
    assert tale.given[SPOT] == groups[0]
    assert not tale.helps


def test_without_tag_the_gang_rolls_out_only_when_no_other_worker_may() -> None:
    tale = Tale(tag=False, gap=False)
    tale.issue(8)
    tale.asks(TRAINS)
    tale.asks(SPOT)
    assert not tale.helps
    tale.scheduler.warn(SPOT, NoticeKind.IMMINENT, 1.0, tale.now)
    tale.serve()
    assert tale.helps


def test_without_gap_a_worker_that_trains_is_served_as_any_other() -> None:
    tale = Tale(gap=False)
    groups = tale.issue(8)
    tale.asks(SPOT)
    tale.waits(groups[:1], VERY_LONG_S)
    tale.asks(TRAINS)
    assert tale.helps


def test_pull_of_a_worker_that_is_gone_is_forgotten() -> None:
    tale = Tale()
    groups = tale.issue(8)
    tale.trains()
    tale.scheduler.lose(TRAINS, ReleaseReason.LOST, tale.now)
    tale.directory.forget(TRAINS)
    tale.waits(groups[:1])
    tale.asks(SPOT)
    assert tale.given[SPOT]
    assert not tale.helps


def test_help_where_the_other_neither_works_nor_asks() -> None:
    """A crew's leader may hand back what it has not begun, and ask for nothing for a long time."""
    tale = Tale(switch_s=20.0)
    groups = tale.issue(2)
    tale.asks(SPOT)
    for each in groups[0]:
        tale.scheduler.hand_back(SPOT, each, 1, 0, tale.now)
    tale.scheduler.pull(SPOT, m.Pull(free_rows=0, row_steps_per_s=SPEED), tale.now)
    tale.trains()
    tale.waits(groups[:1])
    tale.serve()
    assert tale.helps


def test_trainers_starve_while_the_next_part_is_far_and_nothing_waits() -> None:
    for groups_issued, elapsed_s, starved in ((1, 0.0, True), (1, 9.5, False), (2, 0.0, False)):
        tale = Tale()
        groups = tale.issue(groups_issued)
        tale.asks(SPOT)
        tale.trains()
        tale.waits(groups[:1], 20.0)
        tale.now = elapsed_s
        assert tale.assist.is_starved(tale.now) is starved
