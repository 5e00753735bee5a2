"""TAG, trainer-assisted generation: training slots roll out while no part of an update is trainable.

One decision for the whole gang, because training needs all of it.

                 a part is trainable                   no part is
    ASSISTING -----------------------> TRAINING -----------------------> WAITING
      ^ ^   |                             |                               ^ |
      | |   `---- they pull, and assisting does not pay any more ---------' |
      | `------- nothing left to train ---'                                 |
      `------------------ they pull, and assisting pays --------------------'

A training worker pulls like any other, but its pull is held back here until assisting pays:
1. The time until the next part is trainable exceeds the changes of role and one step of a batch. A step is the unit,
   not a sample, because a flight is handed over at a step boundary without loss.
2. The other slots, and the training of what they complete last, would take longer than all that is left to train, or
   the next part is ready sooner with help. Otherwise training is the bottleneck, and help could only delay it. Where
   previews follow the rollouts, help always pays: the slots that roll out use the time saved for previews.
3. The other slots would not have finished the rows sooner. The balance decides that: a helper that has to change its
   role first is late by that time (`Scheduler.pull`).
With asynchrony, trainers that starve while other workers hold all requests may receive a group of the next iteration.
Unmeasured times do not prevent assisting: in the first wave nothing can be trained before a sample is whole. If no
other slot can roll out, the gang does, whatever the settings: losing all spot slots stops no run. The dispatcher owns
`Assist`; `controller/gang.py` and `controller/update.py` report to it what there is to train.

Invariant: no pull is passed on while a part is trained, and none is lost: it is passed on, replaced by the worker's
next pull, or withdrawn by an order to train, after which the worker pulls again (tests/unit/test_assist.py).
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
"""Number of training periods remembered: workers report their work long before this many have passed."""


SLACK = 1.1
"""Factor of rollout time over whole batches and even shares: the last rollouts of a team never end together."""


NOTHING = m.Pull(free_rows=0)


class AssistState(StrEnum):
    """Current role of the training workers."""

    TRAINING = "training"
    ASSISTING = "assisting"
    WAITING = "waiting"


@dataclass(frozen=True)
class NextPart:
    """The groups that the next part waits for, and the training that is left then."""

    groups: list[list[RequestId]]
    """Requests of each group that the part may consist of."""
    count: int
    """Number of groups in the part."""
    train_s: float | None
    """Seconds of training left in the iteration; None if not measured."""
    sample_s: float = 0.0
    """Training seconds per sample."""
    iteration: int | None = None
    """The trained iteration where rollouts may be ahead of it: waiting requests of later ones are not urgent."""


class Assist:
    """Holds back the pulls of training workers, and passes them on while these should roll out."""

    def __init__(
        self, settings: PipelineConfig, directory: Directory, scheduler: Scheduler, previews_follow: bool = False
    ) -> None:
        self._settings = settings
        self._previews_follow = previews_follow
        """Whether the slots that roll out go on to previews, without waiting for training."""
        self._directory = directory
        self._scheduler = scheduler
        self.state = AssistState.ASSISTING
        self._predict: Callable[[], NextPart] | None = None
        """Predicts the next part; None while there is nothing to train on."""
        self._holds_back = settings.gap or not settings.tag
        """Whether pulls of training workers are held back."""
        self._held: dict[WorkerId, m.Pull] = {}
        """Pulls held back until the trainer may assist."""
        self._passed: dict[WorkerId, m.Pull] = {}
        """Last passed-on pull of each training worker."""
        self._trained: set[WorkerId] = set()
        """Workers that have to change their role before they can roll out."""
        self._decide_at = 0.0
        """Earliest time of the next decision."""
        self._starved_at = 0.0
        """Earliest time of the next check for starvation."""
        self._periods: deque[tuple[float, float]] = deque(maxlen=PERIODS_KEPT)
        """Periods in which there was something to train; the end of the current one is infinite."""

    # -- reports of training -------------------------------------------------------------------------------------------

    def train(self, workers: Collection[WorkerId], now: float) -> None:
        """Withdraw the pulls of these workers, which are about to train, until they pull again."""
        self.state = AssistState.TRAINING
        self._held.clear()
        self._passed.clear()
        self._trained = set(workers)
        for worker in workers:
            self._scheduler.pull(worker, NOTHING, now)

    def occupy(self, worker: WorkerId, now: float) -> None:
        """Withdraw the pull of a worker that is about to copy its state, which may take long, until it pulls again."""
        self._held.pop(worker, None)
        self._passed.pop(worker, None)
        self._scheduler.pull(worker, NOTHING, now)

    def wait(self, predict: Callable[[], NextPart], now: float) -> None:
        """Record that no part is trainable; decide again about standing pulls."""
        if self._predict is None:
            self._periods.append((now, inf))
        self.state = AssistState.WAITING
        self._predict = predict
        self._decide_at = self._starved_at = 0.0
        for worker, pull in self._passed.items():
            if worker in self._directory.workers and self._scheduler.has_pull(worker):
                self.pull(worker, pull, now)
        self._passed.clear()

    def rest(self, now: float) -> None:
        """Record that nothing is left to train for now; trained workers change their role when they roll out."""
        if self._predict is not None:
            began, _ = self._periods.pop()
            self._periods.append((began, now))
        self.state = AssistState.ASSISTING
        self._predict = None
        self._decide_at = 0.0

    @property
    def is_resting(self) -> bool:
        """Whether nothing is left to train for now."""
        return self._predict is None

    def helping(self, start: float, end: float) -> list[tuple[float, float]]:
        """Parts of this time in which a training worker's rollouts were assistance: something was left to train."""
        within = [(max(start, began), min(end, ended)) for began, ended in self._periods]
        return [(began, ended) for began, ended in within if began < ended]

    # -- pulls of workers ----------------------------------------------------------------------------------------------

    def pull(self, worker: WorkerId, pull: m.Pull, now: float) -> None:
        """Offer free rows of a worker; pulls of training workers are held back."""
        if self._holds_back and self._directory.workers[worker].trains:
            self._held[worker] = pull
            pull = msgspec.structs.replace(pull, free_rows=0)
        self._scheduler.pull(worker, pull, now)

    def let_through(self, now: float) -> None:
        """Pass on the pulls that are held back, if assisting pays now."""
        if not self._held or self.state is AssistState.TRAINING or now < self._decide_at:
            return
        self._held = {worker: pull for worker, pull in self._held.items() if worker in self._directory.workers}
        if not self._held:
            return
        if not self._pays(now):
            self.state = AssistState.WAITING
            return
        self.state = AssistState.ASSISTING
        pulls, self._held = self._held, {}
        for worker, pull in pulls.items():
            late_s = self._late_s(worker)
            self._trained.discard(worker)
            self._passed[worker] = pull
            self._scheduler.pull(worker, pull, now, late_s, previews=self.is_resting)

    def is_starved(self, now: float) -> bool:
        """Whether trainers wait longer than assisting takes, so that they could roll out the next iteration."""
        self._held = {worker: pull for worker, pull in self._held.items() if worker in self._directory.workers}
        if not (self._settings.tag and self._held) or self.state is AssistState.TRAINING or now < self._starved_at:
            return False
        if self._predict is None or self._scheduler.has_waiting():
            return False
        wait_s = self._until_s(self._predict(), self._team(), now)
        is_starved = self._least_s() < wait_s < inf
        self._starved_at = now if is_starved else now + wait_s
        return is_starved

    # -- inside --------------------------------------------------------------------------------------------------------

    def _pays(self, now: float) -> bool:
        if self._settings.tag and self._predict is None:
            return True
        if not (self._scheduler.has_waiting() if self._predict is None else self._scheduler.has_exact_waiting()):
            return False
        if not self._settings.tag or self._predict is None:
            return not any(self._scheduler.serves(worker) for worker in self._directory.rolling())
        part, least_s = self._predict(), self._least_s()
        wait_s = self._until_s(part, self._team(), now)
        pays = isinf(wait_s) or (wait_s > least_s and self._is_needed(part, wait_s, least_s, now))
        if not pays:
            self._decide_at = now + wait_s
        return pays

    def _is_needed(self, part: NextPart, wait_s: float, least_s: float, now: float) -> bool:
        """Whether anything would end sooner with help."""
        team = self._team()
        if part.train_s is None or self._previews_follow:
            return True
        # Samples that the last rollouts complete are trained after them, however quickly the rest was trained.
        last_s = min(self._scheduler.room(team) * part.sample_s, part.train_s)
        exact_s = self._scheduler.seconds_of_exact_work(team, partial(self._fetching_s, now))
        rollouts_s = SLACK * exact_s + last_s
        if rollouts_s > wait_s + part.train_s + least_s:
            return True
        if part.iteration is not None and self._scheduler.is_only_ahead(part.iteration):
            return True
        return self._until_s(part, [*team, *self._directory.training()], now) + least_s < wait_s

    def _least_s(self) -> float:
        """Seconds of both changes of role and one step."""
        late_s = [self._late_s(worker) + self._scheduler.step_s(worker) for worker in self._held]
        return max(late_s) + self._settings.switch_s

    def _until_s(self, part: NextPart, team: Collection[WorkerId], now: float) -> float:
        """Seconds until the next part is trainable, if this team rolls out."""
        fetching = partial(self._fetching_s, now)
        return self._scheduler.seconds_until(part.groups, part.count, team, now, fetching)

    def _fetching_s(self, now: float, worker: WorkerId, weights: WeightsId) -> float:
        return self._directory.fetching_s(worker, weights, now)

    def _team(self) -> list[WorkerId]:
        """Workers that roll out and hold a lease or a pull; others may stay idle and must not be waited for."""
        return [worker for worker in self._directory.rolling() if self._scheduler.is_engaged(worker)]

    def _late_s(self, worker: WorkerId) -> float:
        return self._settings.switch_s if worker in self._trained else 0.0
