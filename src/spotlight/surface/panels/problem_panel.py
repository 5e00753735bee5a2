"""Problems of a run, each with what to do: derived from its state, and those that it noted on the way."""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from spotlight.budget import BudgetConfig
from spotlight.core.work import SlotClass
from spotlight.surface.formats import count, dollars, duration, percent, score, score_name
from spotlight.surface.liveness import RunStanding, State
from spotlight.surface.panels.ledger_panel import AuditVerdict
from spotlight.surface.projections import ProblemView, RunView
from spotlight.surface.timeline import TimelineState

QUIET_S = 300.0
"""Seconds without progress after which a live run is shown as quiet; at least twice an iteration's time."""
NEARLY = 0.9
"""Share of a budget from which it is shown."""
WASTEFUL = 0.2
"""Share of repeated steps from which it is shown."""
AWAY_S = 60.0
"""Seconds without any spot slot from which it is shown."""


class Severity(StrEnum):
    """Bad: the run does not go on, or its result is in doubt. Warning: it goes on, but worse."""

    BAD = "bad"
    WARNING = "warning"
    NOTE = "note"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A problem in a sentence, and what to do about it."""

    severity: Severity
    problem: str
    todo: str


class ProblemPanel(msgspec.Struct, frozen=True, kw_only=True):
    advice: list[Advice]
    noted: list[ProblemView]
    """The newest problems that the run recorded; each says what to do."""


def problem_panel(
    view: RunView,
    standing: RunStanding,
    word: str = "RUN",
    spent: float = 0.0,
    budget: BudgetConfig | None = None,
    verdict: AuditVerdict | None = None,
) -> ProblemPanel:
    """`word` is the run in a command, `spent` the cost so far in dollars."""
    found = [
        *_of_state(view, standing, word),
        *_of_learning(view),
        *_of_samples(view, verdict),
        *(_of_budget(view, spent, budget) if budget is not None and standing.pid_alive else ()),
    ]
    order = list(Severity)
    return ProblemPanel(advice=sorted(found, key=lambda one: order.index(one.severity)), noted=list(view.problems))


def _of_state(view: RunView, standing: RunStanding, word: str) -> Iterator[Advice]:
    resume = f"`spotlight resume {word}` continues it."
    if standing.state is State.DEAD:
        what = "The run's controller ended without a record, as after SIGKILL or a power cut."
        yield Advice(severity=Severity.BAD, problem=what, todo=resume)
    elif standing.state is State.FAILED:
        what = f"The run failed: {standing.reason}"
        yield Advice(
            severity=Severity.BAD, problem=what, todo=f"Fix the cause (`spotlight logs {word}`), then {resume}"
        )
    if not standing.pid_alive:
        return
    longest = max((one.rollout_s + one.train_s for one in view.iterations[-5:]), default=0.0)
    quiet = standing.last_progress_s or 0.0
    if quiet > max(QUIET_S, 2 * longest):
        what = f"No progress for {duration(quiet)}" + (
            f": it waits for {standing.waiting_for}." if standing.waiting_for else "."
        )
        yield Advice(severity=Severity.WARNING, problem=what, todo=f"Read the newest lines of `spotlight logs {word}`.")
    spot = [row for row in view.timeline.rows.values() if row.slot_class is SlotClass.SPOT]
    if spot and all(view.timeline.state(row) is TimelineState.AWAY for row in spot):
        last = max((life.end or 0.0 for row in spot for life in row.lives), default=0.0)
        if view.at - last > AWAY_S:
            yield Advice(
                severity=Severity.WARNING,
                problem=f"No spot slot for {duration(view.at - last)}: the run continues on the reserved slots alone.",
                todo="Nothing, if the market is to blame; else check quota, zone and the pool's machines.",
            )


def _of_learning(view: RunView) -> Iterator[Advice]:
    rows = view.rewards.rows
    newest = rows[max(rows)] if rows else None
    if newest is not None and newest.groups and newest.flat >= newest.groups / 2:
        yield Advice(
            severity=Severity.BAD if newest.flat == newest.groups else Severity.WARNING,
            problem=(
                f"{newest.flat:,} of {count(newest.groups, 'group')} of iteration {newest.iteration + 1} have one "
                "reward for all samples, so nothing is learned from them."
            ),
            todo="Look at the pictures: the reward may be broken, or the prompts are all solved or all too hard.",
        )
    headline = view.headline()
    if headline is None:
        return
    curve = view.curve(headline)
    best_at, best = max(curve, key=lambda point: point[1].value)
    if curve[-1][1].high < best.low:
        yield Advice(
            severity=Severity.WARNING,
            problem=(
                f"The held-out {score_name(headline)} fell to {score(curve[-1][1].value)} from its best, "
                f"{score(best.value)} after {count(best_at, 'iteration')}."
            ),
            todo="Lower train.lr, or end the next run there: the reward may be exploited.",
        )


def _of_samples(view: RunView, verdict: AuditVerdict | None) -> Iterator[Advice]:
    if verdict is not None and not verdict.clean:
        yield Advice(
            severity=Severity.BAD,
            problem="The audit found broken invariants; its sentences name the records.",
            todo="Keep the run folder and report it: this is a defect of Spotlight or a damaged journal.",
        )
    if view.gaps.exist:
        yield Advice(
            severity=Severity.WARNING if view.gaps.whole else Severity.BAD,
            problem=" ".join(view.gaps.sentences()),
            todo="Fix the reward or the prompt that the reason names; missing samples are not made later.",
        )
    if view.waste > WASTEFUL and view.samples.redone:
        yield Advice(
            severity=Severity.WARNING,
            problem=f"{percent(view.waste)} of all denoising steps were done again.",
            todo="Lower cluster.commit_every, or use a zone with fewer preemptions.",
        )


def _of_budget(view: RunView, spent: float, budget: BudgetConfig) -> Iterator[Advice]:
    todo = "The run stops at the limit and can be resumed with a larger one."
    if budget.max_dollars is not None and spent > NEARLY * budget.max_dollars:
        what = f"{dollars(spent)} of the budget of {dollars(budget.max_dollars)} are spent."
        yield Advice(severity=Severity.NOTE, problem=what, todo=todo)
    if budget.max_hours is not None and view.at > NEARLY * 3600 * budget.max_hours:
        what = f"{duration(view.at)} of the budget of {duration(3600 * budget.max_hours)} are over."
        yield Advice(severity=Severity.NOTE, problem=what, todo=todo)
