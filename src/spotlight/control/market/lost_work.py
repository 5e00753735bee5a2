"""The share of busy seconds that went into redone or discarded steps.

Workers report seconds, not steps, so the lost share of an account's seconds is estimated from steps:
- rollout (also ASSIST) and evaluation seconds: the redone share of the account's denoising steps;
- preview seconds: the discarded share of the run's preview steps;
- training seconds: the undone share of the run's optimizer steps.
Work that the journal does not record is not counted: the previews of lost workers, and a gang's update that died.

A flight of several slots that is lost as a whole is charged to the last of them, up to all of that slot's steps.

Invariant: no activity loses more seconds than it has, and the parts of a split add up to the whole
(tests/unit/test_market_cost.py).
"""

from collections.abc import Callable, Mapping

import msgspec

from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    ExplorationClosed,
    Holding,
    Leased,
    Previewed,
    Released,
    Restored,
    StepCommitted,
)
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, RequestId, Work

ACTIVITIES = {
    Work.ROLLOUT.value: Activity.ROLLOUT,
    Work.AUDIT.value: Activity.ROLLOUT,
    Work.EVALUATION.value: Activity.EVALUATION,
    Work.PREVIEW.value: Activity.PREVIEW,
}


class StepCounts(msgspec.Struct):
    """Denoising steps of one kind of work."""

    done: int = 0
    redone: int = 0


class LeasedSteps(msgspec.Struct, frozen=True):
    """A lease: the account of its steps, and the step at which it started."""

    account: str
    attempt: int
    step: int


class LostWork(msgspec.Struct, kw_only=True):
    """A fold of all events; `account_of` returns the account of a worker's slot, if it has one."""

    held: dict[RequestId, LeasedSteps] = {}
    steps: dict[str, dict[Activity, StepCounts]] = {}
    """Step counts by account."""
    previews: StepCounts = msgspec.field(default_factory=StepCounts)
    """Preview steps of the whole run; discarded ones count as redone."""
    trained: int = 0
    """Number of optimizer steps, including undone ones."""
    undone: int = 0
    standing: int = 0
    """Number of optimizer steps that are not undone."""

    def apply(self, event: AnyEvent, account_of: Callable[[WorkerId], str | None]) -> None:
        match event:
            case Leased():
                account = account_of(event.worker)
                if account is not None:
                    self.held[event.request] = LeasedSteps(account, event.attempt, event.step)
            case Accepted():
                lease = self._end(event.request, event.attempt)
                if lease is not None:
                    self._count(lease.account, event.request, event.steps, 0)
            case Holding():
                pass
            case Released():
                lease = self._end(event.request, event.attempt)
                if lease is not None:
                    done = max(0, event.step + event.redone - lease.step)
                    self._count(lease.account, event.request, done, event.redone)
            case Dropped():
                self.held.pop(event.request, None)
            case Previewed():
                self.previews.done += event.steps * len(event.seeds)
            case ExplorationClosed():
                self.previews.done += event.discarded_steps
                self.previews.redone += event.discarded_steps
            case StepCommitted():
                self.trained += 1
                self.standing = event.step + 1
            case Restored():
                self.undone += max(0, self.standing - event.step)
                self.standing = min(self.standing, event.step)
            case _:
                pass

    def split(self, account: str, seconds: Mapping[Activity, float]) -> dict[Activity, float]:
        """Return the seconds of one account with the lost part under LOST."""
        parted = dict(seconds)
        for activity, share in self._shares(account):
            lost = parted.get(activity, 0.0) * share
            if lost > 0:
                parted[activity] -= lost
                parted[Activity.LOST] = parted.get(Activity.LOST, 0.0) + lost
        return parted

    def _shares(self, account: str) -> list[tuple[Activity, float]]:
        shares = [
            (same, steps.redone / max(steps.done, steps.redone))
            for activity, steps in self.steps.get(account, {}).items()
            if steps.redone
            for same in ((activity, Activity.ASSIST) if activity is Activity.ROLLOUT else (activity,))
        ]
        if self.previews.redone:
            shares.append((Activity.PREVIEW, self.previews.redone / self.previews.done))
        if self.undone:
            shares.append((Activity.TRAIN, min(1.0, self.undone / max(self.trained, 1))))
        return shares

    def _end(self, request: RequestId, attempt: int) -> LeasedSteps | None:
        held = self.held.get(request)
        if held is None or held.attempt != attempt:
            return None
        del self.held[request]
        return held

    def _count(self, account: str, request: RequestId, done: int, redone: int) -> None:
        activity = ACTIVITIES.get(request.partition("/")[0], Activity.ROLLOUT)
        by_activity = self.steps.setdefault(account, {})
        steps = by_activity.get(activity)
        if steps is None:
            steps = by_activity[activity] = StepCounts()
        steps.done += done
        steps.redone += redone
