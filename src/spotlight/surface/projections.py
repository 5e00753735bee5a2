"""A run as people look at it: one fold over its records that feeds panel, report and `status`.

Nothing here decides anything; everything can be thrown away and folded anew, or kept as a snapshot (`to_bytes`).
Invariant: folding in two parts through a snapshot equals folding at once, and of all rollouts ever issued each is in
exactly one of the counts queued, leased, accepted, trained, dropped (tests/unit/test_projections.py).
"""

import math
from collections.abc import Iterable
from typing import Self

import msgspec

from spotlight.control.market.bill import Bill, settle
from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    Evaluated,
    ExplorationClosed,
    Fidelity,
    Issued,
    IterationDone,
    Leased,
    Planned,
    Previewed,
    Published,
    Record,
    Refused,
    Released,
    Reopened,
    Restored,
    RunResumed,
    RunStarted,
    RunStopped,
    Selected,
    StepCommitted,
)
from spotlight.core.types import PromptId
from spotlight.core.work import RequestId, SlotClass, Work
from spotlight.surface.staleness import StaleView
from spotlight.surface.timeline import Timeline
from spotlight.surface.training_figures import TrainingView

HEADLINES = ("exact", "geneval", "reward")
"""Held-out scores by how well people understand them; the first that a run has is its headline."""
PICTURE_SUFFIX = ".png"
"""An accepted evaluation whose payload ends so is a picture of the gallery."""
REMEMBERED_STEPS = 64
"""Optimizer steps whose sample ids are kept, in case the gang falls back behind them."""


class RunFacts(msgspec.Struct, kw_only=True):
    """What a run says of itself."""

    recipe: str = ""
    seed: int = 0
    code: str = ""
    config_digest: str = ""
    started_wall: float | None = None
    attempts: int = 1
    stopped: str | None = None
    """Why it stopped; None while it runs."""
    finished: bool = False
    version: int = 0
    """Newest published policy."""
    iteration: int = 0
    """The newest one that rollouts were issued for."""


class IterationView(msgspec.Struct, kw_only=True):
    iteration: int
    rollout_s: float
    train_s: float
    reward: float
    at: float
    figures: dict[str, float] = {}


class Score(msgspec.Struct):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def differs_from(self, other: "Score") -> bool:
        return self.low > other.high or self.high < other.low


class EvaluationView(msgspec.Struct, kw_only=True):
    iteration: int
    at: float
    scores: dict[str, Score]


class ExplorationView(msgspec.Struct, kw_only=True):
    """Previews for one iteration."""

    iteration: int
    planned: int = 0
    steps: int = 0
    previewed: int = 0
    finished: int = 0
    discarded: int = 0
    seconds: float = 0.0
    budget_s: float = 0.0
    selected: int = 0
    fresh: int = 0
    reason: str = ""
    figures: dict[str, float] = {}


class Picture(msgspec.Struct, kw_only=True):
    """A picture of a held-out prompt, by one policy."""

    iteration: int
    group: int
    seed: int
    prompt: PromptId
    path: str
    reward: float


class WorkCounts(msgspec.Struct):
    """Requests of one kind."""

    issued: int = 0
    accepted: int = 0
    dropped: int = 0


class SampleCounts(msgspec.Struct, kw_only=True):
    """What became of everything that was asked for."""

    by_work: dict[Work, WorkCounts] = {}
    leased: dict[RequestId, tuple[int, int]] = {}
    """Live attempts, and the steps that they began with."""
    waiting: set[RequestId] = set()
    """Rollouts that are accepted and not trained on."""
    trained: int = 0
    released: dict[str, int] = {}
    refused: dict[str, int] = {}
    steps_done: int = 0
    """Denoising steps that count: of accepted attempts, and those that others could go on from."""
    redone_by: dict[str, int] = {}
    """Steps that must be done again, by why the attempt ended."""
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
        """Every rollout ever issued, by where it is now."""
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


class RunView(msgspec.Struct, kw_only=True):
    """Everything that panel, report and status show."""

    seq: int = -1
    at: float = 0.0
    facts: RunFacts = msgspec.field(default_factory=RunFacts)
    iterations: list[IterationView] = []
    evaluations: list[EvaluationView] = []
    explorations: dict[int, ExplorationView] = {}
    timeline: Timeline = msgspec.field(default_factory=Timeline)
    samples: SampleCounts = msgspec.field(default_factory=SampleCounts)
    stale: StaleView = msgspec.field(default_factory=StaleView)
    training: TrainingView = msgspec.field(default_factory=TrainingView)
    prompts: dict[str, PromptId] = {}
    """Of issued evaluations whose picture may still come, by request."""
    gallery: list[Picture] = []
    meter: CostMeter = msgspec.field(default_factory=CostMeter)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Self:
        view = cls()
        for record in records:
            view.apply(record)
        return view

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return msgspec.msgpack.decode(data, type=cls)

    def apply(self, record: Record) -> None:
        """Fold one record in; one that is already in changes nothing."""
        if record.seq <= self.seq:
            return
        self.seq, self.at = record.seq, max(self.at, record.at)
        self.timeline.apply(record)
        self.meter.apply(record)
        self.samples.apply(record.event)
        self.stale.apply(record.event)
        self.training.apply(record.event)
        self._apply_run(record)
        self._apply_exploration(record.event)

    def headline(self) -> str | None:
        """Name of the held-out score to judge the run by."""
        names = {name for evaluation in self.evaluations for name in evaluation.scores}
        return next((name for name in (*HEADLINES, *sorted(names)) if name in names), None)

    def curve(self, name: str) -> list[tuple[int, Score]]:
        return [(seen.iteration, seen.scores[name]) for seen in self.evaluations if name in seen.scores]

    def bill(self, prices: PriceTable) -> Bill:
        reserved = sum(
            row.slot_class is SlotClass.RESERVED and not is_stand_in(row.name) for row in self.timeline.rows.values()
        )
        return settle(self.meter.tallies(), prices, reserved)

    @property
    def waste(self) -> float:
        """Share of denoising steps that were done again."""
        done = self.samples.steps_done + self.samples.redone
        return self.samples.redone / done if done else 0.0

    def _apply_run(self, record: Record) -> None:
        facts = self.facts
        match record.event:
            case RunStarted() as started:
                facts.recipe, facts.seed, facts.code = started.recipe, started.run_seed, started.code
                facts.config_digest, facts.started_wall = started.config_digest, started.wall
            case RunResumed(attempt=attempt):
                facts.attempts, facts.stopped, facts.finished = attempt, None, False
            case RunStopped(reason=reason, finished=finished):
                facts.stopped, facts.finished = reason, finished
            case Published(weights=weights):
                facts.version = weights.version
            case Issued(requests=requests):
                for request in requests:
                    if request.work is Work.ROLLOUT:
                        facts.iteration = max(facts.iteration, request.iteration)
                    elif request.work is Work.EVALUATION:
                        self.prompts[request.id] = request.sample.prompt
            case Accepted() as accepted if work_of(accepted.request) is Work.EVALUATION:
                self._picture(accepted)
            case IterationDone() as done:
                self._undo_from(done.iteration)
                self.iterations.append(
                    IterationView(
                        iteration=done.iteration,
                        rollout_s=done.rollout_s,
                        train_s=done.train_s,
                        reward=done.reward,
                        at=record.at,
                        figures=dict(done.figures),
                    )
                )
            case Evaluated() as seen:
                self.evaluations = [old for old in self.evaluations if old.iteration < seen.iteration]
                scores = {name: Score(*score) for name, score in seen.scores.items() if all(map(math.isfinite, score))}
                self.evaluations.append(EvaluationView(iteration=seen.iteration, at=record.at, scores=scores))
            case _:
                pass

    def _undo_from(self, iteration: int) -> None:
        """After a fall back to a checkpoint an iteration is done again: the later telling counts."""
        self.iterations = [old for old in self.iterations if old.iteration < iteration]

    def _apply_exploration(self, event: AnyEvent) -> None:
        match event:
            case Planned() as planned:
                view = self._exploration(planned.iteration)
                view.planned, view.steps, view.reason = planned.previews, planned.steps, planned.reason
                view.budget_s = planned.budget_s
            case Previewed() as previewed:
                self._exploration(previewed.iteration).previewed += len(previewed.seeds)
            case ExplorationClosed() as closed:
                view = self._exploration(closed.iteration)
                view.finished, view.discarded, view.seconds = closed.finished, closed.discarded, closed.seconds
            case Selected() as selected:
                view = self._exploration(selected.iteration)
                view.selected, view.fresh = sum(map(len, selected.seeds)), sum(selected.fresh)
            case Fidelity() as fidelity:
                self._exploration(fidelity.iteration).figures.update(fidelity.figures)
            case _:
                pass

    def _exploration(self, iteration: int) -> ExplorationView:
        return self.explorations.setdefault(iteration, ExplorationView(iteration=iteration))

    def _picture(self, accepted: Accepted) -> None:
        prompt = self.prompts.pop(accepted.request, PromptId(""))
        if accepted.payload is None or not accepted.payload.endswith(PICTURE_SUFFIX):
            return
        _, iteration, group, seed = accepted.request.split("/")
        self.gallery.append(
            Picture(
                iteration=int(iteration),
                group=int(group),
                seed=int(seed),
                prompt=prompt,
                path=accepted.payload,
                reward=accepted.reward,
            )
        )


def work_of(request: RequestId) -> Work:
    """A request's id begins with what it is for."""
    return Work(request.partition("/")[0])
