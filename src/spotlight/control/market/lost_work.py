"""Which share of the busy seconds went into steps that had to be done again, or that nobody wanted in the end.

Workers report seconds, not steps, so a second is lost as its step is: of the seconds that the slots of one account
rolled out (as helpers too) or evaluated, the share of their denoising steps that were done again; of the seconds
that they previewed, the share of the run's preview steps that were discarded; of the seconds that they trained, the
share of the run's optimizer steps that were undone. Where the journal does not tell, nothing is lost: previews are not
followed one by one, so those of lost workers are not counted, and a gang that dies within a step leaves no trace of it.

A flight that several slots worked on and that is lost whole is charged to the last of them, up to all that it did.

Invariant: no activity loses more seconds than it has, and what is split adds up to what there was
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
    """A lease: which account its steps are on, and where it began."""

    account: str
    attempt: int
    step: int


class LostWork(msgspec.Struct, kw_only=True):
    """Feed it every event; `account_of` names the account that a worker's slot is on, if it is on any."""

    held: dict[RequestId, LeasedSteps] = {}
    steps: dict[str, dict[Activity, StepCounts]] = {}
    """By account."""
    previews: StepCounts = msgspec.field(default_factory=StepCounts)
    """Of the whole run; discarded ones count as redone."""
    trained: int = 0
    """Optimizer steps, also those that were undone."""
    undone: int = 0
    standing: int = 0
    """Optimizer steps that are not undone."""

    def apply(self, event: AnyEvent, account_of: Callable[[WorkerId], str | None]) -> None:
        match event:
            case Leased():
                account = account_of(event.worker)
                if account is not None:
                    self.held[event.request] = LeasedSteps(account, event.attempt, event.step)
            case Accepted():
                began = self._end(event.request, event.attempt)
                if began is not None:
                    self._count(began.account, event.request, event.steps, 0)
            case Holding():
                pass
            case Released():
                began = self._end(event.request, event.attempt)
                if began is not None:
                    did = max(0, event.step + event.redone - began.step)
                    self._count(began.account, event.request, did, event.redone)
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
        """These seconds of one account, with what was lost apart."""
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
