"""Counts of a run's requests by kind, repeated steps, and the reasons why attempts ended.

Invariant: every rollout ever issued is in exactly one of the counts queued, leased, accepted, trained, dropped
(tests/unit/test_projections.py).
"""

import msgspec

from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    Issued,
    Leased,
    Refused,
    Released,
    Reopened,
    Restored,
    RunResumed,
    StepCommitted,
)
from spotlight.core.work import RequestId, Work

_WORKS = {work.value: work for work in Work}
"""By value: quicker than a call of the class."""
REMEMBERED_STEPS = 64
"""Number of optimizer steps whose sample ids are kept, in case they are undone."""


class WorkCounts(msgspec.Struct):
    """Counts of the requests of one kind."""

    issued: int = 0
    accepted: int = 0
    dropped: int = 0


class SampleCounts(msgspec.Struct, kw_only=True):
    """Counts over all requests."""

    by_work: dict[Work, WorkCounts] = {}
    leased: dict[RequestId, tuple[int, int]] = {}
    """Live attempts and their first steps."""
    waiting: set[RequestId] = set()
    """Rollouts that are accepted and not trained on."""
    trained: int = 0
    released: dict[str, int] = {}
    refused: dict[str, int] = {}
    steps_done: int = 0
    """Denoising steps of accepted attempts, and committed steps of others."""
    redone_by: dict[str, int] = {}
    """Steps to be repeated, by the reason why the attempt ended."""
    step_sizes: list[int] = []
    last_steps: dict[int, tuple[RequestId, ...]] = {}

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Issued(requests=requests):
                for request in requests:
                    self._of(request.id).issued += 1
            case Leased(request=request, attempt=attempt, step=step):
                self.leased[request] = (attempt, step)
            case Released() as released:
                self._release(released)
            case Accepted() as accepted:
                self._accept(accepted)
            case Refused(reason=reason):
                self.refused[reason.value] = self.refused.get(reason.value, 0) + 1
            case Dropped(request=request):
                self.leased.pop(request, None)
                self._take_back(request)
                self._of(request).dropped += 1
            case Reopened(request=request):
                self._take_back(request)
            case StepCommitted() as step:
                self.step_sizes.append(len(step.requests))
                self.last_steps[len(self.step_sizes) - 1] = step.requests
                self.last_steps.pop(len(self.step_sizes) - 1 - REMEMBERED_STEPS, None)
                self.trained += len(step.requests)
                self.waiting.difference_update(step.requests)
            case Restored(step=step):
                for undone in range(step, len(self.step_sizes)):
                    self.trained -= self.step_sizes[undone]
                    self.waiting.update(self.last_steps.pop(undone, ()))
                del self.step_sizes[step:]
            case RunResumed():
                self.leased.clear()
            case _:
                pass

    def rollouts(self) -> dict[str, int]:
        """Number of rollouts by state."""
        counts = self.by_work.get(Work.ROLLOUT, WorkCounts())
        leased = sum(work_of(request) is Work.ROLLOUT for request in self.leased)
        waiting = counts.accepted - self.trained
        queued = counts.issued - leased - counts.accepted - counts.dropped
        return {
            "queued": queued,
            "leased": leased,
            "accepted": waiting,
            "trained": self.trained,
            "dropped": counts.dropped,
        }

    @property
    def redone(self) -> int:
        return sum(self.redone_by.values())

    def _of(self, request: RequestId) -> WorkCounts:
        return self.by_work.setdefault(work_of(request), WorkCounts())

    def _take_back(self, request: RequestId) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
            self._of(request).accepted -= 1

    def _release(self, released: Released) -> None:
        attempt, began = self.leased.get(released.request, (0, 0))
        if attempt == released.attempt:
            del self.leased[released.request]
            self.steps_done += max(0, released.step - began)
        reason = released.reason.value
        self.released[reason] = self.released.get(reason, 0) + 1
        self.redone_by[reason] = self.redone_by.get(reason, 0) + released.redone

    def _accept(self, accepted: Accepted) -> None:
        self.leased.pop(accepted.request, None)
        self._of(accepted.request).accepted += 1
        self.steps_done += accepted.steps
        if work_of(accepted.request) is Work.ROLLOUT:
            self.waiting.add(accepted.request)


def work_of(request: RequestId) -> Work:
    """The kind of work, which is the first part of a request's id."""
    return _WORKS[request.partition("/")[0]]
