"""The arithmetic ceiling of every row of the benchmark: the least seconds that its schedule could take, from a profile.

A unit is what the slots that roll out draw at once, at least a group. G and T are the seconds to draw and to train all
units, g and t those of the first and the last unit, w publication (p) plus fetch (f), a the seconds in which a trainer
adopts its own weights, N the number of slots:

    serial       G + T + w                                      batches over samples
    +GAP         max(G + t, g + T) + w                          = g + (M - 1) max(g, t) + t + w where units are alike
    +TSP         the same                                       batches over pairs
    +TAG         drawing and all training but the last group's shared by all slots, of which trainers can draw after a
                 and the others after f, then the last group's training and p
    +asynchrony  the longest of G + f and T + p; or with trainers that help, and so take up weights as well, of
                 T + p + a, of drawing, training, p of one trainer, f and a shared by all slots, and of the fresh share
                 as with TAG

The last two also respect the order of groups: before the samples of k groups are drawn after publication, at most k - 1
of these groups are trained; and trainers do not train while they draw. With TAG they also respect small batches: the
first rows have to end soon, and few rows are left when most groups are trained (`few_rows.py`).

With helpers slots do not finish in lockstep: the last unit may be a single group, and shares need not be whole rounds.
With asynchrony a period is measured over many iterations, and the samples drawn ahead of the first and of the last may
differ by a batch: such a row may seem to exceed its ceiling by that much. Each ceiling is the best over the batches of
its row. Launches bound small batches, so nothing is drawn faster than all slots could with even shares. An
overhead-free colocated pool takes (GPU-seconds of drawing and training) / N.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.pipeline.cells import GROUP, Cell, Loss, Row, batches, offered, profile_of
from benchmarks.pipeline.few_rows import Iteration, least_end_s
from spotlight.control.profiles import Operation, Profile, efficient_batch

STALE = 0.5
FORWARDS = {Loss.NFT: 1, Loss.FLOW_GRPO: 0}
"""Forwards of the behaviour policy per trained timestep."""


@dataclass(frozen=True)
class Sums:
    """Seconds of one iteration with a given number of rows in a slot's batch."""

    drawn: float
    evenly_drawn: float
    """Drawing in fractional shares, as if other slots or the next iteration filled the round."""
    first_drawn: float
    trained: float
    last: int
    """Samples of the last unit."""
    publish: float
    fetch: float
    adopt: float

    @property
    def handed_out(self) -> float:
        return self.publish + self.fetch


@cache
def ceiling_s(cell: Cell, row: Row) -> float:
    """The least seconds of an iteration."""
    profile = profile_of(cell.profile)
    return min(_seconds(cell, each, rows) for each in row.before for rows in offered(profile, each))


def colocated_s(cell: Cell) -> float:
    """Seconds of a pool without overhead: no change of role, no publication, full batches."""
    profile, setting, machines = profile_of(cell.profile), cell.setting, cell.machines
    best_draw = min(_drawn_s(profile, rows, setting.steps) / rows for rows in batches(profile))
    batch = efficient_batch(profile, Operation.TRAIN_TIMESTEP)
    image_timestep = _batch_s(cell, batch) / batch
    work = setting.samples * (best_draw + setting.timesteps * image_timestep)
    return work / (machines.trainers + machines.rollers * machines.speed)


def _seconds(cell: Cell, row: Row, rows: int) -> float:
    sums, machines = sums_of(cell, row, rows), cell.machines
    drawing, gang = machines.rollers * machines.speed, machines.trainers

    def shared(drawn: float, trained: float) -> float:
        return (drawing * drawn + gang * trained) / (drawing + gang)

    match row:
        case Row.SERIAL:
            return sums.drawn + sums.trained + sums.handed_out
        case Row.GAP | Row.TSP:
            last = _last_trained_s(cell, sums.last, Row.TSP in row.before)
            both = max(sums.drawn + last, sums.first_drawn + sums.trained)
            return both + sums.handed_out
        case Row.TAG:
            last = _last_trained_s(cell, GROUP, over_pairs=True)
            drawn = shared(sums.fetch + sums.evenly_drawn, sums.adopt + sums.trained - last)
            return max(drawn + last, _turns_s(cell, cell.setting.prompts, rows), _few_rows_s(cell)) + sums.publish
        case Row.ASYNC:
            fresh = cell.setting.prompts - int(STALE * cell.setting.prompts)
            rolled, busy = sums.evenly_drawn + sums.fetch, sums.trained + sums.publish
            # One rank writes the weights; the others may draw meanwhile.
            by_all = shared(rolled, sums.trained + sums.adopt + sums.publish / gang)
            last = _last_trained_s(cell, GROUP, over_pairs=True)
            drawn = shared(sums.fetch + sums.evenly_drawn * fresh / cell.setting.prompts, sums.adopt)
            helped = max(by_all, busy + sums.adopt, drawn + last + sums.publish)
            return max(min(max(rolled, busy), helped), _turns_s(cell, fresh, rows) + sums.publish)


def sums_of(cell: Cell, row: Row, rows: int) -> Sums:
    profile, setting, machines = profile_of(cell.profile), cell.setting, cell.machines
    unit = min(setting.samples, max(GROUP, rows * machines.rollers))
    last = (setting.samples - 1) % unit + 1
    over_pairs = Row.TSP in row.before
    return Sums(
        drawn=_team_s(profile, setting.samples, machines.rollers, setting.steps, rows) / machines.speed,
        evenly_drawn=_evenly_drawn_s(cell, rows),
        first_drawn=_team_s(profile, unit, machines.rollers, setting.steps, rows) / machines.speed,
        trained=_last_trained_s(cell, setting.samples, over_pairs),
        last=last,
        publish=profile.seconds(Operation.PUBLISH),
        fetch=profile.seconds(Operation.NODE_FETCH),
        adopt=profile.seconds(Operation.ADOPT),
    )


@cache
def _few_rows_s(cell: Cell) -> float:
    """Least seconds from publication to the last optimizer step, over all batches."""
    groups = range(1, cell.setting.prompts + 1)
    left_s = tuple(_last_trained_s(cell, number * GROUP, over_pairs=True) for number in groups)
    return least_end_s(_iteration(cell, GROUP, left_s))


def _iteration(cell: Cell, group: int, left_s: tuple[float, ...]) -> Iteration:
    profile, setting, machines = profile_of(cell.profile), cell.setting, cell.machines
    timed = batches(profile)
    return Iteration(
        step_s=tuple(profile.seconds(Operation.DENOISE_STEP, rows) for rows in range(1, timed[-1] + 1)),
        decode_s=min(profile.seconds(Operation.DECODE, rows) / rows for rows in timed),
        rollers=machines.rollers,
        trainers=machines.trainers,
        speed=machines.speed,
        fetch_s=profile.seconds(Operation.NODE_FETCH),
        adopt_s=profile.seconds(Operation.ADOPT),
        group=group,
        steps=setting.steps,
        left_s=left_s,
    )


@cache
def _turns_s(cell: Cell, groups: int, rows: int) -> float:
    """Least seconds from publication to the last optimizer step, with this number of groups drawn after it."""
    return max(_turn_s(cell, groups, number, rows) for number in range(1, groups + 1))


def _turn_s(cell: Cell, groups: int, number: int, rows: int) -> float:
    """The bound at group `number` k: before the samples of k groups are drawn, at most k - 1 groups are trained, and
    trainers do not train while they draw."""
    profile, machines, samples = profile_of(cell.profile), cell.machines, number * GROUP
    adopt, fetch = profile.seconds(Operation.ADOPT), profile.seconds(Operation.NODE_FETCH)
    left = _last_trained_s(cell, (groups - number + 1) * GROUP, over_pairs=True)
    trained = _last_trained_s(cell, cell.setting.samples, over_pairs=True)
    alone = _team_s(profile, samples, machines.rollers, cell.setting.steps, rows) / machines.speed
    # With help, shares need not be whole rows.
    even = _evenly_drawn_s(cell, rows) * samples / cell.setting.samples
    # Seconds saved by the others per second that the trainers draw.
    by_trainers = machines.trainers * _row_steps_per_s(profile, min(rows, -(-samples // machines.trainers)))
    sooner = by_trainers * even / (samples * cell.setting.steps)
    starved = fetch + even + left - adopt - trained
    helped = adopt + trained + max(0.0, starved) / (1 + sooner)
    return max(_all_draw_s(cell, samples) + left, min(helped, max(trained, fetch + alone + left)))


def _row_steps_per_s(profile: Profile, rows: int) -> float:
    """Row-steps per second of a slot with at most this number of rows."""
    timed = batches(profile)
    return max(
        each / profile.seconds(Operation.DENOISE_STEP, each) for each in (*timed, rows) if each <= min(rows, timed[-1])
    )


@cache
def _all_draw_s(cell: Cell, samples: int) -> float:
    """Seconds of drawing from publication on, by all slots that hold it, with rows handed over freely."""
    return least_end_s(_iteration(cell, samples, left_s=(0.0,)))


def _evenly_drawn_s(cell: Cell, rows: int) -> float:
    """Seconds of drawing by the slots that roll out, always busy with the best batch of at most this number of rows."""
    profile, machines, setting = profile_of(cell.profile), cell.machines, cell.setting
    sample_s = min(_drawn_s(profile, each, setting.steps) / each for each in (*batches(profile), rows) if each <= rows)
    return setting.samples * sample_s / (machines.rollers * machines.speed)


def _team_s(profile: Profile, samples: int, slots: int, steps: int, rows: int) -> float:
    return sum(_drawn_s(profile, each, steps) for each in _cut(-(-samples // slots), rows))


def _drawn_s(profile: Profile, rows: int, steps: int) -> float:
    return steps * profile.seconds(Operation.DENOISE_STEP, rows) + profile.seconds(Operation.DECODE, rows)


def _last_trained_s(cell: Cell, samples: int, over_pairs: bool) -> float:
    """Training of the last samples of an iteration, with the optimizer steps that they complete."""
    setting, profile = cell.setting, profile_of(cell.profile)
    by_update = setting.samples // setting.updates
    updates, rest = divmod(samples, by_update)
    joined = profile.seconds(Operation.OPTIMIZER_STEP, degree=cell.machines.trainers)
    in_part = _trained_s(cell, rest, over_pairs) + joined if rest else 0.0
    return updates * (_trained_s(cell, by_update, over_pairs) + joined) + in_part


def _trained_s(cell: Cell, samples: int, over_pairs: bool) -> float:
    """A rank's share: all its pairs in batches, or its samples in batches, timestep by timestep."""
    profile, timesteps = profile_of(cell.profile), cell.setting.timesteps
    batch, share = efficient_batch(profile, Operation.TRAIN_TIMESTEP), -(-samples // cell.machines.trainers)
    runs = [share * timesteps] if over_pairs else [share] * timesteps
    return sum(_batch_s(cell, rows) for run in runs for rows in _cut(run, batch))


def _batch_s(cell: Cell, rows: int) -> float:
    profile = profile_of(cell.profile)
    forwards_s = FORWARDS[cell.setting.loss] * profile.seconds(Operation.DENOISE_STEP, rows)
    return profile.seconds(Operation.TRAIN_TIMESTEP, rows) + forwards_s


def _cut(count: int, batch: int) -> Iterator[int]:
    for start in range(0, count, batch):
        yield min(batch, count - start)
