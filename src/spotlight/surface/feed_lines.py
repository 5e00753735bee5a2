"""What happened in a run, in sentences: one line for each record that a person may want to know of.

A line depends on its record alone, so that the lines of any part of the journal can be made without the part before.
Bulk records (leases, samples, spans) have none.
"""

from enum import StrEnum

import msgspec

from spotlight.core.events import (
    BULK,
    AnyEvent,
    Checkpointed,
    Crewing,
    Evaluated,
    IterationDone,
    NodeJoined,
    NodeLost,
    NoticeGiven,
    NoticeWithdrawn,
    ProblemNoted,
    Reconnected,
    Record,
    Restored,
    RunResumed,
    RunStarted,
    RunStopped,
    WorkerLost,
)
from spotlight.surface.formats import count, duration, score, score_name, took
from spotlight.surface.timeline import ORDERLY, row_name


class FeedKind(StrEnum):
    """Kind of a line; pages mark it with a word and a colour."""

    RUN = "run"
    PROGRESS = "progress"
    SCORE = "score"
    MACHINE = "machine"
    NOTICE = "notice"
    LOSS = "loss"
    REGROUP = "regroup"
    PROBLEM = "problem"


class FeedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    seq: int
    at: float
    kind: FeedKind
    text: str


def feed_line(record: Record) -> FeedLine | None:
    """The line of a record, if it has one."""
    if type(record.event) in BULK:
        return None
    found = _of_run(record.event) or _of_machines(record.event)
    return None if found is None else FeedLine(seq=record.seq, at=record.at, kind=found[0], text=found[1])


def _of_run(event: AnyEvent) -> tuple[FeedKind, str] | None:
    match event:
        case RunStarted(recipe=recipe, run_seed=seed):
            return FeedKind.RUN, f"started: recipe {recipe or '–'}, seed {seed}"
        case RunResumed(attempt=attempt):
            return FeedKind.RUN, f"resumed: controller {attempt} continues the run"
        case RunStopped(reason=reason):
            how = "finished" if event.finished else "failed" if event.failed else "stopped"
            return FeedKind.RUN, f"{how}: {reason}"
        case ProblemNoted(source=source, problem=problem):
            return FeedKind.PROBLEM, f"{source}: {problem}"
        case IterationDone() as done:
            times = f"rollouts {duration(done.rollout_s)}, training {duration(done.train_s)}"
            return FeedKind.PROGRESS, f"iteration {done.iteration + 1} done: {times}, reward {score(done.reward)}"
        case Evaluated(iteration=iteration, scores=scores):
            shown = ", ".join(f"{score_name(name)} {score(value)}" for name, (value, _, _) in scores.items())
            after = count(iteration, "iteration")
            return FeedKind.SCORE, f"held out after {after}: {shown or 'no picture has a score'}"
        case Checkpointed(step=step):
            return FeedKind.PROGRESS, f"checkpoint after {count(step, 'optimizer step')}"
        case Restored(step=step, reason=reason):
            return FeedKind.LOSS, f"training restored from step {step}: {reason}"
        case _:
            return None


def _of_machines(event: AnyEvent) -> tuple[FeedKind, str] | None:
    match event:
        case NodeJoined(node=node, slot_class=slot_class, slots=slots, zone=zone):
            where = f" in {zone}" if zone else ""
            return FeedKind.MACHINE, f"{node} joined{where}: {count(slots, f'{slot_class.value} slot')}"
        case NodeLost(node=node, cause=cause):
            if cause in ORDERLY:
                return FeedKind.MACHINE, f"{node} left: {cause}"
            return FeedKind.LOSS, f"{node} lost: {cause}"
        case WorkerLost(worker=worker, cause=cause, noticed=noticed) if cause not in ORDERLY:
            how = "after a notice" if noticed else "without notice"
            return FeedKind.LOSS, f"worker {worker} lost {how}: {cause}"
        case NoticeGiven(worker=worker, kind=kind, seconds=seconds):
            until = f"{duration(seconds)} left" if seconds is not None else "no time given"
            return FeedKind.NOTICE, f"{row_name(worker)}: {kind.value} notice, {until}"
        case NoticeWithdrawn(worker=worker):
            return FeedKind.NOTICE, f"{row_name(worker)}: notice withdrawn"
        case Reconnected(node=node, seconds=seconds):
            return FeedKind.MACHINE, f"{node} connected again after {took(seconds)}"
        case Crewing(node=node, crews=crews, reason=reason, seconds=seconds) if crews:
            degrees = " + ".join(str(len(crew)) for crew in crews)
            return FeedKind.REGROUP, f"{node} regrouped to {degrees} in {took(seconds)}: {reason}"
        case _:
            return None
