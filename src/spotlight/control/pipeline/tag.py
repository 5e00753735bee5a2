"""Whether the slots that train help to roll out: one decision for the whole gang, because training needs all of it.

                 a part is trainable                     none is
    ASSISTING -----------------------> TRAINING -----------------------> WAITING
      ^ ^   |                             |                               ^ |
      | |   `---- they ask for more, and it is not worth it any more -----' |
      | `------- nothing left to train ---'                                 |
      `------------------ they ask, and helping is worth it ----------------'

A worker that trains asks for work as any other does, but its pull is kept here until helping is worth it:
1. The time until the next part is trainable exceeds the changes of role and one step of a batch. A step is the unit,
   not a sample, because a flight is handed over at a step boundary and nothing of it is lost.
2. The others, and the training of what they complete last, would take longer than all that is left to train, or the
   next part comes sooner with help: otherwise training is what everybody waits for, and help could only delay it.
   Where previews follow the rollouts there is always something that would be over sooner: who rolls out does not wait
   for training, and previews in what it is spared. There help is with what comes next, whether it is finished or not.
3. The others would not have finished the rows sooner. That is the balance's to see: a helper that has to change its
   role first is late by that (`Scheduler.pull`).
With asynchrony, trainers that starve while all is held by others may have a group of the next iteration.
What is not measured yet does not speak against helping: in the first wave nothing can be trained before a sample is
whole. Where nobody else is left to roll out the gang does, whatever the settings: losing all spot slots stops no run.
The dispatcher owns it; `controller/gang.py` and `controller/update.py` report to it what there is to train.

Invariant: no pull is passed on while a part is trained, and none is lost: it is passed on, replaced by the worker's
next one, or taken back by an order to train, after which the worker asks again (tests/unit/test_assist.py).
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import inf, isinf

import msgspec

from spotlight.control.directory import Directory
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId, WeightsId

PERIODS_KEPT = 64
"""Of times in which there was something to train: workers tell what they did long before so many have passed."""


SLACK = 1.1
"""Rollouts take so many times what whole batches and even shares would: the last ones of a team never end together."""


NOTHING = m.Pull(free_rows=0)


class AssistState(StrEnum):
    """What the workers that train are for at the moment."""

    TRAINING = "training"
    ASSISTING = "assisting"
    WAITING = "waiting"


@dataclass(frozen=True)
class NextPart:
    """What the next part waits for, and what is left to train then."""

    groups: list[list[RequestId]]
    """Requests of each group that it may consist of."""
    count: int
    """Of the groups that it takes."""
    train_s: float | None
    """Seconds of training that are left in the iteration, as far as that is known."""
    sample_s: float = 0.0
    """Of these, that one sample takes."""
    iteration: int | None = None
    """That is trained, where rollouts may be ahead of it: what waits for later ones keeps nobody waiting now."""


class Assist:
    """Keeps the pulls of workers that train, and lets them through when these should roll out."""

    def __init__(
        self, settings: PipelineConfig, directory: Directory, scheduler: Scheduler, previews_follow: bool = False
    ) -> None:
        self._settings = settings
        self._previews_follow = previews_follow
        """Whether those that roll out have something to do afterwards, whatever training does."""
        self._directory = directory
        self._scheduler = scheduler
        self.state = AssistState.ASSISTING
        self._foresee: Callable[[], NextPart] | None = None
        """None: there is nothing to train on for now."""
        self._keeps = settings.gap or not settings.tag
        """Whether pulls of workers that train are kept."""
        self._pulls: dict[WorkerId, m.Pull] = {}
        """Kept."""
        self._passed: dict[WorkerId, m.Pull] = {}
        """The last one of each worker that was not."""
        self._trained: set[WorkerId] = set()
        """Who has to change its role before it can roll out."""
        self._decide_at = 0.0
        """Not worth deciding again before."""
        self._starved_at = 0.0
        """Not worth looking for more work before."""
        self._periods: deque[tuple[float, float]] = deque(maxlen=PERIODS_KEPT)
        """In which there was something to train; infinite is the end of the one that goes on."""

    # -- what training says --------------------------------------------------------------------------------------------

    def train(self, workers: Collection[WorkerId], now: float) -> None:
        """These are about to train: nothing more for them until they ask again."""
        self.state = AssistState.TRAINING
        self._pulls.clear()
        self._passed.clear()
        self._trained = set(workers)
        for worker in workers:
            self._scheduler.pull(worker, NOTHING, now)

    def occupy(self, worker: WorkerId, now: float) -> None:
        """It is about to copy its state, which may take long: nothing more for it until it asks again."""
        self._pulls.pop(worker, None)
        self._passed.pop(worker, None)
        self._scheduler.pull(worker, NOTHING, now)

    def wait(self, foresee: Callable[[], NextPart], now: float) -> None:
        """No part is trainable; pulls that stand are decided about."""
        if self._foresee is None:
            self._periods.append((now, inf))
        self.state = AssistState.WAITING
        self._foresee = foresee
        self._decide_at = self._starved_at = 0.0
        for worker, pull in self._passed.items():
            if worker in self._directory.workers and self._scheduler.asks(worker):
                self.ask(worker, pull, now)
        self._passed.clear()

    def rest(self, now: float) -> None:
        """There is nothing left to train for now; who has trained changes its role when it rolls out."""
        if self._foresee is not None:
            began, _ = self._periods.pop()
            self._periods.append((began, now))
        self.state = AssistState.ASSISTING
        self._foresee = None
        self._decide_at = 0.0

    @property
    def is_resting(self) -> bool:
        """Whether nothing is left to train for now."""
        return self._foresee is None

    def helping(self, start: float, end: float) -> list[tuple[float, float]]:
        """When, within these times, rollouts of a worker that trains were help: there was something left to train."""
        within = [(max(start, began), min(end, ended)) for began, ended in self._periods]
        return [(began, ended) for began, ended in within if began < ended]

    # -- what workers ask ----------------------------------------------------------------------------------------------

    def ask(self, worker: WorkerId, pull: m.Pull, now: float) -> None:
        """A worker has room."""
        if self._keeps and self._directory.workers[worker].trains:
            self._pulls[worker] = pull
            pull = msgspec.structs.replace(pull, free_rows=0)
        self._scheduler.pull(worker, pull, now)

    def let_through(self, now: float) -> None:
        """Pass on what was kept, if that is worth it by now."""
        if not self._pulls or self.state is AssistState.TRAINING or now < self._decide_at:
            return
        self._pulls = {worker: pull for worker, pull in self._pulls.items() if worker in self._directory.workers}
        if not self._pulls:
            return
        if not self._is_worth_helping(now):
            self.state = AssistState.WAITING
            return
        self.state = AssistState.ASSISTING
        pulls, self._pulls = self._pulls, {}
        for worker, pull in pulls.items():
            late_s = self._late_s(worker)
            self._trained.discard(worker)
            self._passed[worker] = pull
            self._scheduler.pull(worker, pull, now, late_s)

    def is_starved(self, now: float) -> bool:
        """Whether those that train wait longer than helping takes: they could roll out what nobody waits for yet."""
        self._pulls = {worker: pull for worker, pull in self._pulls.items() if worker in self._directory.workers}
        if not (self._settings.tag and self._pulls) or self.state is AssistState.TRAINING or now < self._starved_at:
            return False
        if self._foresee is None or self._scheduler.is_waited_for():
            return False
        waits_s = self._until_s(self._foresee(), self._team(), now)
        is_starved = self._unit_s() < waits_s < inf
        self._starved_at = now if is_starved else now + waits_s
        return is_starved

    # -- inside --------------------------------------------------------------------------------------------------------

    def _is_worth_helping(self, now: float) -> bool:
        if self._settings.tag and self._foresee is None:
            return True
        if not self._scheduler.is_waited_for():
            return False
        if not self._settings.tag or self._foresee is None:
            return not any(self._scheduler.serves(worker) for worker in self._directory.rolling())
        foreseen, unit_s = self._foresee(), self._unit_s()
        waits_s = self._until_s(foreseen, self._team(), now)
        is_worth_it = isinf(waits_s) or (waits_s > unit_s and self._is_needed(foreseen, waits_s, unit_s, now))
        if not is_worth_it:
            self._decide_at = now + waits_s
        return is_worth_it

    def _is_needed(self, foreseen: NextPart, waits_s: float, unit_s: float, now: float) -> bool:
        """Whether anything would be over sooner with help."""
        team = self._team()
        if foreseen.train_s is None or self._previews_follow:
            return True
        # What the last rollouts complete is trained after them, however quickly the rest was.
        last_s = min(self._scheduler.room(team) * foreseen.sample_s, foreseen.train_s)
        exact_s = self._scheduler.seconds_of_exact_work(team, partial(self._fetching_s, now))
        rollouts_s = SLACK * exact_s + last_s
        if rollouts_s > waits_s + foreseen.train_s + unit_s:
            return True
        if foreseen.iteration is not None and self._scheduler.is_only_ahead(foreseen.iteration):
            return True
        return self._until_s(foreseen, [*team, *self._directory.training()], now) + unit_s < waits_s

    def _unit_s(self) -> float:
        """Both changes of role, and a step."""
        late_s = [self._late_s(worker) + self._scheduler.step_s(worker) for worker in self._pulls]
        return max(late_s) + self._settings.switch_s

    def _until_s(self, foreseen: NextPart, team: Collection[WorkerId], now: float) -> float:
        """Until the next part is trainable, if these roll out."""
        fetching = partial(self._fetching_s, now)
        return self._scheduler.seconds_until(foreseen.groups, foreseen.count, team, now, fetching)

    def _fetching_s(self, now: float, worker: WorkerId, weights: WeightsId) -> float:
        return self._directory.fetching_s(worker, weights, now)

    def _team(self) -> list[WorkerId]:
        """Who rolls out: one that neither works nor asks may not do so for long, and must not be waited for."""
        return [worker for worker in self._directory.rolling() if self._scheduler.is_engaged(worker)]

    def _late_s(self, worker: WorkerId) -> float:
        return self._settings.switch_s if worker in self._trained else 0.0
