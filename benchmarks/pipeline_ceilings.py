"""The arithmetic ceiling of every row of `pipeline.py`: the least seconds that its schedule could take, from a profile.

A unit is what the slots that roll out draw at once, at least a group. G and T are the seconds in which they draw and
the trainers train all units, g and t those of the first and the last one, w publication (p) and fetch (f), a the
seconds in which a trainer takes up what it wrote, N slots:

    serial       G + T + w                                      batches over samples
    +GAP         max(G + t, g + T) + w                          = g + (M - 1) max(g, t) + t + w where units are alike
    +TSP         the same                                       batches over pairs
    +TAG         drawing and all training but the last unit's shared by all slots, of which trainers are there after a
                 and the others after f, then t + p; at least one group, drawn by all slots, then T + p
    +asynchrony  the longest of G + f, T + p, and the fresh share of G, then t + w; or with trainers that help, and so
                 take up weights as well: drawing, training, p, f and a shared by all slots; T + p + a; the fresh share
                 drawn by all slots as with TAG, then t + p

Each is the best over the batches that were timed. Launches bound small batches, so nothing is drawn more quickly than
all slots could with even shares. An overhead-free colocated pool takes (GPU-seconds of drawing and training) / N.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from pipeline_cells import GROUP, Cell, Loss, Row, batches, profile_of

from spotlight.control.profiles import Operation, Profile
from spotlight.runtime.sim.profiled import efficient_batch

STALE = 0.5
ROUNDING = 1 + 1e-9
FORWARDS = {Loss.NFT: 1, Loss.FLOW_GRPO: 0}
"""Of the behaviour policy, beside every trained timestep."""


@dataclass(frozen=True)
class Sums:
    """Seconds, with so many rows in a slot's batch."""

    drawn: float
    first_drawn: float
    trained: float
    last_trained: float
    publish: float
    fetch: float
    adopt: float

    @property
    def handed_out(self) -> float:
        return self.publish + self.fetch


@cache
def ceiling_s(cell: Cell, row: Row) -> float:
    """The least seconds of an iteration."""
    return min(_seconds(cell, each, rows) for each in row.before for rows in batches(profile_of(cell.profile)))


def colocated_s(cell: Cell) -> float:
    """Of a pool without overhead: no change of role, no publication, full batches."""
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

    def by_all(samples: int, alone: float, trained: float = 0.0) -> float:
        """From publication on: fluid shares of what the slots beside training would take, unless launches bound it."""
        by_trainers = sums.adopt + trained + drawing * alone / gang
        fluid = by_trainers if by_trainers < sums.fetch else shared(sums.fetch + alone, sums.adopt + trained)
        return max(fluid, _all_draw_s(cell, samples))

    match row:
        case Row.SERIAL:
            return sums.drawn + sums.trained + sums.handed_out
        case Row.GAP | Row.TSP:
            both = max(sums.drawn + sums.last_trained, sums.first_drawn + sums.trained)
            return both + sums.handed_out
        case Row.TAG:
            drawn = by_all(cell.setting.samples, sums.drawn, sums.trained - sums.last_trained)
            return max(drawn + sums.last_trained, _in_turn_s(cell, cell.setting.prompts)) + sums.publish
        case Row.ASYNC:
            fresh = cell.setting.prompts - int(STALE * cell.setting.prompts)
            fluid_s = sums.drawn * fresh / cell.setting.prompts
            fresh_s = max(fluid_s, _quickest_s(cell, fresh * GROUP, cell.machines.rollers) / cell.machines.speed)
            rolled, busy, last = sums.drawn + sums.fetch, sums.trained + sums.publish, sums.last_trained
            alone = max(rolled, busy, fresh_s + last + sums.handed_out)
            helped_s = by_all(fresh * GROUP, fluid_s) + last + sums.publish
            helped = max(shared(rolled, busy + sums.adopt), busy + sums.adopt, helped_s)
            return max(min(alone, helped), _in_turn_s(cell, fresh) + sums.publish)


def sums_of(cell: Cell, row: Row, rows: int) -> Sums:
    profile, setting, machines = profile_of(cell.profile), cell.setting, cell.machines
    unit = min(setting.samples, max(GROUP, rows * machines.rollers))
    last = (setting.samples - 1) % unit + 1
    over_pairs = Row.TSP in row.before
    return Sums(
        drawn=_team_s(profile, setting.samples, machines.rollers, setting.steps, rows) / machines.speed,
        first_drawn=_team_s(profile, unit, machines.rollers, setting.steps, rows) / machines.speed,
        trained=_last_trained_s(cell, setting.samples, over_pairs),
        last_trained=_last_trained_s(cell, last, over_pairs),
        publish=profile.seconds(Operation.PUBLISH),
        fetch=profile.seconds(Operation.NODE_FETCH),
        adopt=profile.seconds(Operation.ADOPT),
    )


def _in_turn_s(cell: Cell, groups: int) -> float:
    """From publication on: before as many samples as k groups have are drawn, at most k - 1 of them are trained."""
    return max(
        _all_draw_s(cell, number * GROUP) + _last_trained_s(cell, (groups - number + 1) * GROUP, over_pairs=True)
        for number in range(1, groups + 1)
    )


@cache
def _all_draw_s(cell: Cell, samples: int) -> float:
    """From publication on, each on one slot: by trainers once they took it up, by the others once they fetched it."""
    profile, machines = profile_of(cell.profile), cell.machines
    adopt, fetch = profile.seconds(Operation.ADOPT), profile.seconds(Operation.NODE_FETCH)
    alone = _by_one_slot_s(cell)
    ends = sorted({*(adopt + each for each in alone), *(fetch + each / machines.speed for each in alone)})

    def fits(end: float) -> bool:
        by_trainers = bisect_right(alone, (end - adopt) * ROUNDING)
        by_others = bisect_right(alone, (end - fetch) * machines.speed * ROUNDING)
        return machines.trainers * by_trainers + machines.rollers * by_others >= samples

    return ends[bisect_left(ends, True, key=fits)]


@cache
def _by_one_slot_s(cell: Cell) -> list[float]:
    """Seconds in which a slot draws one sample, two, and so on."""
    return [_quickest_s(cell, count, 1) for count in range(1, cell.setting.samples + 1)]


def _quickest_s(cell: Cell, samples: int, slots: int) -> float:
    """In even shares, with whatever batch is best."""
    profile = profile_of(cell.profile)
    return min(_team_s(profile, samples, slots, cell.setting.steps, rows) for rows in batches(profile))


def _team_s(profile: Profile, samples: int, slots: int, steps: int, rows: int) -> float:
    return sum(_drawn_s(profile, each, steps) for each in _cut(-(-samples // slots), rows))


def _drawn_s(profile: Profile, rows: int, steps: int) -> float:
    return steps * profile.seconds(Operation.DENOISE_STEP, rows) + profile.seconds(Operation.DECODE, rows)


def _last_trained_s(cell: Cell, samples: int, over_pairs: bool) -> float:
    """The last so many samples of an iteration, with the optimizer steps that they complete."""
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
