"""A run at a glance: its verdict in one sentence, its state and its key figures."""

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.surface.formats import count, duration
from spotlight.surface.liveness import RunStanding, State
from spotlight.surface.panels.ledger_panel import AuditVerdict
from spotlight.surface.panels.preview_panel import mean_figure
from spotlight.surface.panels.score_panel import gain_sentence
from spotlight.surface.projections import RunFacts, RunView, ScoreInterval

RECENT = 5
"""Iterations by which the time left is estimated."""


class SummaryPanel(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the tiles and of the first lines."""

    sentence: str
    state: State
    reason: str | None
    waiting_for: str | None
    progress_wall: float | None
    """Wall-clock time of the last result, step, publication or evaluation."""
    facts: RunFacts
    seq: int
    seconds: float
    missing: list[str]
    headline: str | None
    first_score: ScoreInterval | None
    last_score: ScoreInterval | None
    evaluations: int
    iterations: int
    of: int | None
    """Number of iterations that the run is to have."""
    left_s: float | None
    """None unless a controller works on the run."""
    preemptions: int
    unannounced: int
    waste: float
    redone: int
    steps_done: int
    previews: int
    captured: float | None
    dollars: float
    saving: float | None
    trained: int
    is_audited: bool
    is_clean: bool
    is_whole: bool


def summary_panel(
    view: RunView, prices: PriceTable, standing: RunStanding, of: int | None = None, verdict: AuditVerdict | None = None
) -> SummaryPanel:
    headline = view.headline()
    curve = view.curve(headline) if headline is not None else []
    bill, facts, taken = view.bill(prices), view.facts, view.timeline.preemptions
    return SummaryPanel(
        sentence=verdict_sentence(view, verdict),
        state=standing.state,
        reason=standing.reason,
        waiting_for=standing.waiting_for,
        progress_wall=None if facts.wall_offset is None else facts.wall_offset + facts.progress_at,
        facts=facts,
        seq=view.seq,
        seconds=view.at,
        missing=view.gaps.counts(),
        headline=headline,
        first_score=curve[0][1] if curve else None,
        last_score=curve[-1][1] if curve else None,
        evaluations=len(curve),
        iterations=len(view.iterations),
        of=of,
        left_s=seconds_left(view, of) if standing.pid_alive else None,
        preemptions=len(taken),
        unannounced=sum(not one.noticed for one in taken),
        waste=view.waste,
        redone=view.samples.redone,
        steps_done=view.samples.steps_done,
        previews=sum(one.done for one in view.explorations.values()),
        captured=mean_figure(list(view.explorations.values()), "captured_variance"),
        dollars=bill.dollars,
        saving=1 - bill.dollars / bill.all_reserved if bill.all_reserved else None,
        trained=view.samples.trained,
        is_audited=verdict is not None,
        is_clean=verdict is not None and verdict.clean,
        is_whole=verdict is not None and verdict.whole,
    )


def seconds_left(view: RunView, of: int | None) -> float | None:
    """Seconds until all iterations are done, by the last ones; None before the first one and after the end."""
    recent = view.iterations[-RECENT:]
    if of is None or not recent or len(view.iterations) >= of or view.facts.stopped is not None:
        return None
    each = sum(one.rollout_s + one.train_s for one in recent) / len(recent)
    return each * (of - len(view.iterations))


def verdict_sentence(view: RunView, verdict: AuditVerdict | None) -> str:
    """The run in one sentence."""
    headline = view.headline()
    if headline is None:
        return (
            "The run has just started: no evaluation yet."
            if view.facts.stopped is None
            else "The run stopped before its first evaluation."
        )
    text = gain_sentence(headline, view.curve(headline))
    text = f"{text[:1].upper()}{text[1:]} in {count(len(view.iterations), 'iteration')} and {duration(view.at)}"
    taken = view.timeline.preemptions
    if taken:
        unannounced = sum(not one.noticed for one in taken)
        text += f", through {count(len(taken), 'preemption')} ({unannounced:,} without notice)"
    if verdict is not None:
        text += "; no sample was lost or trained twice" if verdict.clean else "; the audit found problems"
    if not view.gaps.whole:
        text += f", but {view.gaps.counts()[0]}"
    return f"{text}."
