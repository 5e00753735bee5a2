"""What a run will take, before it is run: seconds of each phase of an iteration, hours and dollars, from a profile.

Capacity is steady and every slot works alone. One iteration, in the order of the loop:

    rollout      every slot draws its even share of the samples (and of the audited seeds) in rounds of `rows`; a round
                 is scored while the next is drawn, so only the last score is waited for (`drawing.py`)
    train        roles are switched there and back; each update is a rank's share in micro-batches, with the forwards
                 of other weights that the loss needs, and one optimizer step of the whole gang (`training.py`); where
                 training overlaps rollouts, what is left of it when these are in (`overlap.py`)
    exploration  beside training: previews on the slots that do not train, waited for only as far as `overrun` allows;
                 inline: previews on all slots, all of them waited for
    publish      into the run's store, and from there into every node
    evaluation   every so many iterations: its own publication, and what does not fit beside training
    checkpoint   every so many iterations a copy of the trainer's state, which is written while the next ones run; if
                 it is not on disk when there is to be another, the rest of the writing

The bandit's step count is not known before the run: previews are forecast at `explore.steps`, as many as fit into what
it may plan for. Invariant: the phases add up to the iteration, more slots never make a rollout of as many samples
longer, and previews that finish never take longer than they are waited for (tests/property/test_forecast_property.py).
"""

import math
from collections.abc import Iterable

import msgspec

from spotlight.control.explore.config import ExploreConfig, PlanKind, Timing
from spotlight.control.forecast.asked import Durations, Fleet, Rates, Team, Workload
from spotlight.control.forecast.drawing import Line
from spotlight.control.forecast.overlap import Overlap
from spotlight.control.profiles import Operation

HOUR_S = 3600.0


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the mean iteration that somebody waits for."""

    rollout: float
    train: float
    exploration: float
    """Previews that are waited for when training has ended; those beside it cost no time."""
    publish: float
    evaluation: float
    checkpoint: float

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, name) for name in self.__struct_fields__)


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet's run."""

    spot: int
    spot_slots: int
    slots: int
    phases: Phases
    seconds_per_iteration: float
    previews_planned: int
    previews_finished: int
    """Per iteration, of those planned."""
    previews_fit: int
    """Per iteration, as many as could be drawn beside training, wanted or not."""
    audited: int
    """Samples per iteration that are rolled out only to measure previews."""
    dollars_per_hour: float
    dollars_per_iteration: float
    iterations: int
    hours: float
    """All iterations, with the start of the workers and the last evaluation and checkpoint."""
    dollars: float


class Previews(msgspec.Struct, frozen=True, kw_only=True):
    """What exploration comes to in one iteration."""

    planned: int = 0
    finished: int = 0
    fit: int = 0
    waited_s: float = 0.0
    beside_s: float = 0.0
    """That they take of the time in which others train."""
    audited: int = 0


def forecast(work: Workload, fleet: Fleet, times: Durations, rates: Rates) -> Forecast:
    """The run at this capacity, all the time."""
    window_s = Overlap(work, fleet, times, work.samples).spans().train
    previews = _previews(work, fleet, times, window_s)
    spans = Overlap(work, fleet, times, work.samples + previews.audited).spans(previews.beside_s)
    handed_out_s = times.seconds(Operation.PUBLISH) + times.seconds(Operation.NODE_FETCH)
    over_s = _evaluation_beyond_training_s(work, fleet, times, spans.train)
    without = Phases(
        rollout=spans.rollout,
        train=spans.train,
        exploration=previews.waited_s,
        publish=handed_out_s,
        evaluation=(handed_out_s + over_s) / work.evaluation.every,
        checkpoint=0.0,
    )
    phases = msgspec.structs.replace(without, checkpoint=_checkpoint_s(work, times, without.total))
    around_s = (
        times.seconds(Operation.WORKER_START)
        + handed_out_s
        + _evaluation(work, fleet, times, fleet.everybody)
        + times.seconds(Operation.CHECKPOINT)
    )
    # Nothing is explored for the iteration after the last.
    hours = (around_s + work.iterations * phases.total - phases.exploration) / HOUR_S
    per_hour = rates.per_hour(fleet)
    return Forecast(
        spot=fleet.spot,
        spot_slots=fleet.spot * fleet.slots,
        slots=fleet.all_slots,
        phases=phases,
        seconds_per_iteration=phases.total,
        previews_planned=previews.planned,
        previews_finished=previews.finished,
        previews_fit=previews.fit,
        audited=previews.audited,
        dollars_per_hour=per_hour,
        dollars_per_iteration=per_hour * phases.total / HOUR_S,
        iterations=work.iterations,
        hours=hours,
        dollars=per_hour * hours,
    )


def for_spot_counts(
    work: Workload, fleet: Fleet, times: Durations, rates: Rates, counts: Iterable[int]
) -> list[Forecast]:
    """The same run with so many spot nodes instead."""
    return [forecast(work, msgspec.structs.replace(fleet, spot=count), times, rates) for count in counts]


def _checkpoint_s(work: Workload, times: Durations, rest_s: float) -> float:
    """Of an iteration whose other phases take `rest_s`: the next one waits for the one that is being written."""
    held_s, written_s = times.seconds(Operation.SNAPSHOT), times.seconds(Operation.CHECKPOINT)
    return (held_s + max(0.0, written_s - held_s - work.checkpoint_every * rest_s)) / work.checkpoint_every


def _previews(work: Workload, fleet: Fleet, times: Durations, train_s: float) -> Previews:
    explore = work.explore
    if explore is None:
        return Previews()
    inline = explore.timing is Timing.INLINE
    afterwards = not inline and not fleet.beside and explore.is_drawn_afterwards
    team = fleet.everybody if inline or afterwards else fleet.beside
    line = Line(times, fleet, team, min(explore.steps, work.steps), work.passes, Operation.PREVIEW_STEP)
    most = explore.most_seeds * work.prompts
    fit = msgspec.structs.replace(line, team=fleet.beside).fits(train_s, most)
    planned = _planned(work, explore, line, train_s)
    if not planned:
        return Previews(fit=fit)
    needed_s = line.seconds(planned)
    beside_s = 0.0 if inline or afterwards else train_s
    patience_s = math.inf if inline else beside_s + explore.overrun * train_s
    finished = planned if needed_s <= patience_s else line.fits(patience_s, planned)
    over_s = max(0.0, min(needed_s, patience_s) - beside_s)
    unselected = max(0, finished - work.samples)
    return Previews(
        planned=planned,
        finished=finished,
        fit=fit,
        waited_s=over_s,
        beside_s=min(needed_s, beside_s),
        audited=round(explore.audit_share * unselected),
    )


def _planned(work: Workload, explore: ExploreConfig, line: Line, train_s: float) -> int:
    """None where nothing could be selected from what they are."""
    if not line.team:
        return 0
    if explore.plan is PlanKind.FIXED:
        return explore.planned_previews(work.prompts) if explore.seeds > work.group_size else 0
    planned = line.fits(explore.planned_share * train_s, explore.most_seeds * work.prompts)
    return planned if planned > work.group_size else 0


def _evaluation_beyond_training_s(work: Workload, fleet: Fleet, times: Durations, train_s: float) -> float:
    """Slots that do not train evaluate meanwhile; where all train, everybody waits."""
    if not fleet.beside:
        return _evaluation(work, fleet, times, fleet.everybody)
    return max(0.0, _evaluation(work, fleet, times, fleet.beside) - train_s)


def _evaluation(work: Workload, fleet: Fleet, times: Durations, team: Team) -> float:
    line = Line(times, fleet, team, work.evaluation.steps, work.evaluation.passes)
    return line.seconds(work.evaluation.pictures)
