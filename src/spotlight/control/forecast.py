"""What a run will take, before it is run: seconds of each phase of an iteration, hours and dollars, from a profile.

Capacity is steady and every slot works alone. One iteration, in the order of the loop:

    rollout      every slot draws its even share of the samples (and of the audited seeds) in rounds of `rows`; a round
                 is scored while the next is drawn, so only the last score is waited for
    train        roles are switched there and back; each update is a rank's share in micro-batches, with the forwards
                 of other weights that the loss needs, and one optimizer step of the whole gang
    exploration  beside training: previews on the slots that do not train, waited for only as far as `overrun` allows;
                 inline: previews on all slots, all of them waited for
    publish      into the run's store, and from there into every node
    evaluation   every so many iterations: its own publication, and what does not fit beside training
    checkpoint   every so many iterations

The bandit's step count is not known before the run: previews are forecast at `explore.steps`, as many as fit into what
it may plan for. Invariant: the phases add up to the iteration, more slots never make a rollout of as many samples
longer, and previews that finish never take longer than they are waited for (tests/property/test_forecast_property.py).
"""

import math
from collections.abc import Iterable
from typing import Protocol

import msgspec

from spotlight.control.explore.config import ExploreConfig, PlanKind, Timing
from spotlight.control.profiles import Operation
from spotlight.core.errors import ConfigError

HOUR_S = 3600.0
NEEDED = (
    Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.OPTIMIZER_STEP, Operation.DECODE, Operation.REWARD,
    Operation.PUBLISH, Operation.NODE_FETCH, Operation.WORKER_START, Operation.ROLE_SWITCH, Operation.CHECKPOINT,
)  # fmt: skip
"""What a profile must tell for a forecast."""


class Durations(Protocol):
    """Seconds per operation: a profile."""

    def seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float: ...


class Evaluations(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out pictures, and how often they are drawn."""

    every: int
    pictures: int
    steps: int
    passes: int


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks for, whoever does it."""

    iterations: int
    prompts: int
    group_size: int
    steps: int
    passes: int
    """Rows of a forward per sample: 2 with guidance."""
    timesteps: int
    """Trained timesteps per sample."""
    forwards: int
    """Of other weights than the trained ones, per trained timestep."""
    updates: int
    micro_batch: int
    evaluation: Evaluations
    checkpoint_every: int
    explore: ExploreConfig | None
    """None: fresh seeds always."""

    @property
    def samples(self) -> int:
        return self.prompts * self.group_size

    @property
    def samples_by_update(self) -> list[int]:
        """Groups are dealt out to the updates in turn."""
        updates = min(self.updates, self.prompts)
        return [len(range(first, self.prompts, updates)) * self.group_size for first in range(updates)]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind of hardware."""

    reserved: int
    spot: int
    gang: int
    """Slots that train, on reserved nodes."""
    slots: int
    """Per node."""
    rows: int
    """Samples that a slot draws together."""
    scorers: int
    """Reward processes per node."""

    @property
    def all_slots(self) -> int:
        return (self.reserved + self.spot) * self.slots

    @property
    def beside_training(self) -> int:
        return self.all_slots - self.gang


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars per slot-hour; `spot` may be missing where none is used."""

    reserved: float
    spot: float | None

    def per_hour(self, fleet: Fleet) -> float:
        """Of the whole fleet, busy or not."""
        if fleet.spot and self.spot is None:
            raise ConfigError(
                f"{fleet.spot} spot nodes were asked for without a price of theirs, so nothing can be summed up; name "
                "a row of the price table with market.spot_price."
            )
        return fleet.slots * (fleet.reserved * self.reserved + fleet.spot * (self.spot or 0.0))


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
    audited: int = 0


class Line(msgspec.Struct, frozen=True):
    """Slots that draw pictures of one kind together."""

    times: Durations
    fleet: Fleet
    slots: int
    steps: int
    passes: int
    step: Operation = Operation.DENOISE_STEP

    def seconds(self, pictures: int) -> float:
        """Until the last of so many pictures is scored."""
        rounds, rest = divmod(_shared(pictures, self.slots), self.fleet.rows)
        drawn = scored = 0.0
        for rows in (*[self.fleet.rows] * rounds, *([rest] if rest else ())):
            drawn += self._drawn_s(rows)
            scored = max(drawn, scored) + self._scored_s(rows)
        return scored

    def fits(self, window_s: float, most: int) -> int:
        """Pictures that are scored within the window, at most `most`."""
        low, high = 0, _shared(most, self.slots) if self.slots else 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(middle * self.slots) <= window_s else (low, middle - 1)
        return min(most, low * self.slots)

    def _drawn_s(self, rows: int) -> float:
        step_s = self.times.seconds(self.step, batch=rows * self.passes)
        return self.steps * step_s + self.times.seconds(Operation.DECODE, batch=rows)

    def _scored_s(self, rows: int) -> float:
        """The slots of a node finish a round together, and its reward processes take the pictures one by one."""
        return _shared(rows * self.fleet.slots, self.fleet.scorers) * self.times.seconds(Operation.REWARD)


def forecast(work: Workload, fleet: Fleet, times: Durations, rates: Rates) -> Forecast:
    """The run at this capacity, all the time."""
    train_s = _train_s(work, fleet, times)
    previews = _previews(work, fleet, times, train_s)
    handed_out_s = times.seconds(Operation.PUBLISH) + times.seconds(Operation.NODE_FETCH)
    drawing = Line(times, fleet, fleet.all_slots, work.steps, work.passes)
    phases = Phases(
        rollout=drawing.seconds(work.samples + previews.audited),
        train=train_s,
        exploration=previews.waited_s,
        publish=handed_out_s,
        evaluation=(handed_out_s + _evaluation_beyond_training_s(work, fleet, times, train_s)) / work.evaluation.every,
        checkpoint=times.seconds(Operation.CHECKPOINT) / work.checkpoint_every,
    )
    around_s = (
        times.seconds(Operation.WORKER_START)
        + handed_out_s
        + _evaluation(work, fleet, times, fleet.all_slots)
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


def _train_s(work: Workload, fleet: Fleet, times: Durations) -> float:
    shares = [_shared(samples, fleet.gang) * work.timesteps for samples in work.samples_by_update]
    joined_s = times.seconds(Operation.OPTIMIZER_STEP, degree=fleet.gang)
    turned_s = 2 * times.seconds(Operation.ROLE_SWITCH)
    return turned_s + math.fsum(_gradient_s(share, work, times) + joined_s for share in shares)


def _gradient_s(image_timesteps: int, work: Workload, times: Durations) -> float:
    """One rank's share of an update, in micro-batches."""
    full, rest = divmod(image_timesteps, work.micro_batch)
    sizes = [*[work.micro_batch] * full, *([rest] if rest else ())]
    rows = [size * work.passes for size in sizes]
    trained_s = math.fsum(times.seconds(Operation.TRAIN_TIMESTEP, batch=batch) for batch in rows)
    return trained_s + work.forwards * math.fsum(times.seconds(Operation.DENOISE_STEP, batch=batch) for batch in rows)


def _previews(work: Workload, fleet: Fleet, times: Durations, train_s: float) -> Previews:
    explore = work.explore
    if explore is None:
        return Previews()
    inline = explore.timing is Timing.INLINE
    afterwards = not inline and not fleet.beside_training and explore.is_drawn_afterwards
    slots = fleet.all_slots if inline or afterwards else fleet.beside_training
    line = Line(times, fleet, slots, min(explore.steps, work.steps), work.passes, Operation.PREVIEW_STEP)
    most = explore.most_seeds * work.prompts
    fit = msgspec.structs.replace(line, slots=fleet.beside_training).fits(train_s, most)
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
        audited=round(explore.audit_share * unselected),
    )


def _planned(work: Workload, explore: ExploreConfig, line: Line, train_s: float) -> int:
    """None where nothing could be selected from what they are."""
    if not line.slots:
        return 0
    if explore.plan is PlanKind.FIXED:
        return explore.seeds * work.prompts if explore.seeds > work.group_size else 0
    planned = line.fits(explore.planned_share * train_s, explore.most_seeds * work.prompts)
    return planned if planned > work.group_size else 0


def _evaluation_beyond_training_s(work: Workload, fleet: Fleet, times: Durations, train_s: float) -> float:
    """Slots that do not train evaluate meanwhile; where all train, everybody waits."""
    if not fleet.beside_training:
        return _evaluation(work, fleet, times, fleet.all_slots)
    return max(0.0, _evaluation(work, fleet, times, fleet.beside_training) - train_s)


def _evaluation(work: Workload, fleet: Fleet, times: Durations, slots: int) -> float:
    line = Line(times, fleet, slots, work.evaluation.steps, work.evaluation.passes)
    return line.seconds(work.evaluation.pictures)


def _shared(count: int, takers: int) -> int:
    """The largest of even shares."""
    return -(-count // takers)
