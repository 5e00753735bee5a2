"""The view of a run: one fold over its records that feeds panel, report, page and `status`.

The view makes no decisions. It can be folded again from the journal, or stored as a snapshot (`to_bytes`).
Invariant: folding in two parts through a snapshot equals folding at once, and every rollout ever issued is in exactly
one of the counts queued, leased, accepted, trained, dropped (tests/unit/test_projections.py).
"""

import math
from collections.abc import Iterable
from typing import Self

import msgspec

from spotlight.control.ledger.gaps import Gaps
from spotlight.control.market.bill import Bill, settle
from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Checkpointed,
    Evaluated,
    ExplorationClosed,
    Fidelity,
    Issued,
    IterationDone,
    Planned,
    Previewed,
    ProblemNoted,
    Published,
    Record,
    RunResumed,
    RunStarted,
    RunStopped,
    Selected,
    StepCommitted,
)
from spotlight.core.types import PromptId
from spotlight.core.work import SlotClass, Work
from spotlight.surface.crew_rows import CrewView
from spotlight.surface.feed_lines import FeedLine, feed_line
from spotlight.surface.reward_rows import RewardView
from spotlight.surface.sample_counts import SampleCounts, work_of
from spotlight.surface.stale_rows import StaleView
from spotlight.surface.timeline import Timeline
from spotlight.surface.training_figures import TrainingView

HEADLINES = ("exact", "geneval", "reward")
"""Held-out scores, the easiest to understand first; the first that a run has is its headline."""
MEDIA = (".png", ".mp4", ".webm")
"""An accepted evaluation with such a payload is a picture or a video of the gallery."""
PROBLEMS_KEPT = 20
FEED_KEPT = 200
PROGRESS = (Accepted, StepCommitted, Published, Checkpointed, Evaluated, Selected, IterationDone)
"""Events that count as progress."""


class RunFacts(msgspec.Struct, kw_only=True):
    """Identity, settings and end of a run."""

    recipe: str = ""
    seed: int = 0
    code: str = ""
    config_digest: str = ""
    started_wall: float | None = None
    attempts: int = 1
    stopped: str | None = None
    """Why it stopped; None while it runs."""
    finished: bool = False
    failed: bool = False
    """Whether an error stopped it."""
    is_issued: bool = False
    """Whether a request was issued since the controller last started."""
    wall_offset: float | None = None
    """Wall-clock time less run time, since the controller last started."""
    progress_at: float = 0.0
    """Run time of the last result, step, publication or evaluation."""
    version: int = 0
    """Newest published policy."""
    iteration: int = 0
    """The newest iteration with issued rollouts."""


class IterationView(msgspec.Struct, kw_only=True):
    iteration: int
    rollout_s: float
    train_s: float
    reward: float
    at: float
    figures: dict[str, float] = {}


class ScoreInterval(msgspec.Struct):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def differs_from(self, other: "ScoreInterval") -> bool:
        return self.low > other.high or self.high < other.low


class EvaluationView(msgspec.Struct, kw_only=True):
    iteration: int
    at: float
    scores: dict[str, ScoreInterval]


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

    @property
    def done(self) -> int:
        """Number of finished previews; of an open exploration, those recorded so far."""
        return max(self.finished, self.previewed)


class HeldOutPicture(msgspec.Struct, kw_only=True):
    """A picture or a video of a held-out prompt, by one policy."""

    iteration: int
    group: int
    seed: int
    prompt: PromptId
    path: str
    reward: float


class ProblemView(msgspec.Struct, kw_only=True):
    """A problem on the way, as a sentence."""

    at: float
    source: str
    problem: str


class RunView(msgspec.Struct, kw_only=True):
    """All data of panel, report and status."""

    seq: int = -1
    at: float = 0.0
    facts: RunFacts = msgspec.field(default_factory=RunFacts)
    iterations: list[IterationView] = []
    evaluations: list[EvaluationView] = []
    explorations: dict[int, ExplorationView] = {}
    timeline: Timeline = msgspec.field(default_factory=Timeline)
    crews: CrewView = msgspec.field(default_factory=CrewView)
    samples: SampleCounts = msgspec.field(default_factory=SampleCounts)
    stale: StaleView = msgspec.field(default_factory=StaleView)
    training: TrainingView = msgspec.field(default_factory=TrainingView)
    rewards: RewardView = msgspec.field(default_factory=RewardView)
    prompts: dict[str, PromptId] = {}
    """Prompts of issued evaluations without a picture yet, by request."""
    gallery: list[HeldOutPicture] = []
    meter: CostMeter = msgspec.field(default_factory=CostMeter)
    gaps: Gaps = msgspec.field(default_factory=Gaps)
    problems: list[ProblemView] = []
    """The newest problems."""
    feed: list[FeedLine] = []
    """The newest lines of what happened."""

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
        """Fold in one record; a record that is already folded in changes nothing."""
        if record.seq <= self.seq:
            return
        self.seq, self.at = record.seq, max(self.at, record.at)
        self.timeline.apply(record)
        self.crews.apply(record)
        self.meter.apply(record)
        self.samples.apply(record.event)
        self.stale.apply(record.event)
        self.gaps.count(record.event)
        if isinstance(record.event, PROGRESS):
            self.facts.progress_at = record.at
        self.training.apply(record.event)
        self.rewards.apply(record.event)
        self._apply_line(record)
        self._apply_run(record)
        self._apply_exploration(record.event)

    def headline(self) -> str | None:
        """Name of the run's main held-out score."""
        names = {name for evaluation in self.evaluations for name in evaluation.scores}
        return next((name for name in (*HEADLINES, *sorted(names)) if name in names), None)

    def curve(self, name: str) -> list[tuple[int, ScoreInterval]]:
        return [(seen.iteration, seen.scores[name]) for seen in self.evaluations if name in seen.scores]

    def bill(self, prices: PriceTable) -> Bill:
        reserved = sum(
            row.slot_class is SlotClass.RESERVED and not is_stand_in(row.name) for row in self.timeline.rows.values()
        )
        return settle(self.meter.tallies(), prices, reserved)

    @property
    def waste(self) -> float:
        """Share of repeated denoising steps."""
        done = self.samples.steps_done + self.samples.redone
        return self.samples.redone / done if done else 0.0

    def _apply_run(self, record: Record) -> None:
        facts = self.facts
        match record.event:
            case RunStarted() as started:
                facts.recipe, facts.seed, facts.code = started.recipe, started.run_seed, started.code
                facts.config_digest, facts.started_wall = started.config_digest, started.wall
                facts.wall_offset = started.wall - record.at
            case RunResumed() as resumed:
                facts.attempts, facts.stopped, facts.finished = resumed.attempt, None, False
                facts.failed = facts.is_issued = False
                facts.wall_offset = resumed.wall - record.at
            case RunStopped() as stopped:
                facts.stopped, facts.finished, facts.failed = stopped.reason, stopped.finished, stopped.failed
            case ProblemNoted() as noted:
                self.problems.append(ProblemView(at=record.at, source=noted.source, problem=noted.problem))
                del self.problems[:-PROBLEMS_KEPT]
            case Published(weights=weights):
                facts.version = weights.version
            case Issued(requests=requests):
                facts.is_issued = True
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
                scores = {
                    name: ScoreInterval(*score) for name, score in seen.scores.items() if all(map(math.isfinite, score))
                }
                self.evaluations.append(EvaluationView(iteration=seen.iteration, at=record.at, scores=scores))
            case _:
                pass

    def _apply_line(self, record: Record) -> None:
        line = feed_line(record)
        if line is not None:
            self.feed.append(line)
            del self.feed[:-FEED_KEPT]

    def _undo_from(self, iteration: int) -> None:
        """Drop iterations that are repeated after a restore: the later record counts."""
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
        if accepted.payload is None or not accepted.payload.endswith(MEDIA):
            return
        _, iteration, group, seed = accepted.request.split("/")
        self.gallery.append(
            HeldOutPicture(
                iteration=int(iteration),
                group=int(group),
                seed=int(seed),
                prompt=prompt,
                path=accepted.payload,
                reward=accepted.reward,
            )
        )
