"""The cells of the comparison: settings, machines, and the rows of the ablation, each with all earlier switches."""

import tempfile
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from spotlight.config import RunConfig
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.control.profiles.derive import gangs
from spotlight.core.events import IterationDone
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.simulate import Simulation, simulate
from spotlight.surface.simulating import Assumed, model_numerics, simulated_config

LEARNING = "words-large-nft"
"""Fit of the rewards; no duration depends on them."""
GROUP = 16
GRADIENT_BYTES = 1_699_000_000
"""Bytes of the gradients of adapters of rank 64, as in the profiles."""
POOLS = (6, 16, 24, 32)
"""Ranks of pools that the profiles have no optimizer step of."""
SETTLED = (2, 4)
"""The period of a run is measured between the ends of these iterations; the run has one more."""
SETTLED_AHEAD = (6, 18)
"""SETTLED of runs whose iterations overlap."""
SETTLED_LONG = (6, 54)
"""SETTLED of the reported choice: over few iterations a run may use more samples drawn ahead than it leaves, and the
best of many choices would be one that happened to, and seem quicker than any schedule is."""
ROUNDS = 8
"""Largest number of rounds in which a slot draws its share, if its batch is chosen."""
STEADY = ("eval.every=1000", "eval.prompts=1", "output.checkpoint_every=1000")
"""Only rollouts, training and publication: evaluation and checkpoints are the same in every row."""


class Row(StrEnum):
    """Rows of the table; each has all switches of the rows before it."""

    SERIAL = "serial"
    GAP = "+GAP"
    TSP = "+TSP"
    TAG = "+TAG"
    ASYNC = "+asynchrony"

    @property
    def before(self) -> "tuple[Row, ...]":
        rows = list(Row)
        return tuple(rows[: rows.index(self) + 1])


SWITCHES = {
    Row.SERIAL: (),
    Row.GAP: ("pipeline.gap=true",),
    Row.TSP: ("train.batches_over=pairs",),
    Row.TAG: ("pipeline.tag=true",),
    Row.ASYNC: ("pipeline.asynchrony=true",),
}
COLOCATED = "colocated"


class Loss(StrEnum):
    """The loss: its recipe, and its setting for the number of timesteps."""

    NFT = "NFT"
    FLOW_GRPO = "Flow-GRPO"

    @property
    def recipe(self) -> str:
        return "words-large-nft" if self is Loss.NFT else "words-large-flow-grpo"

    @property
    def timesteps(self) -> str:
        return "algorithm.timesteps_per_sample" if self is Loss.NFT else "rollout.window_size"


class Setting(msgspec.Struct, frozen=True):
    """Samples, steps and updates of an iteration."""

    prompts: int
    steps: int
    timesteps: int
    updates: int = 1
    loss: Loss = Loss.NFT

    @property
    def samples(self) -> int:
        return self.prompts * GROUP

    @property
    def overrides(self) -> list[str]:
        """Settings of the recipe. Rewards are drawn by the initial noise: a group that shares it would be flat."""
        return [
            *(f"rollout.prompts={self.prompts}", f"rollout.group_size={GROUP}", f"rollout.steps={self.steps}"),
            *("rollout.initial_noise=per_sample", f"{self.loss.timesteps}={self.timesteps}"),
            f"train.updates_per_iteration={self.updates}",
        ]

    @property
    def name(self) -> str:
        updates = f", {self.updates} updates" if self.updates > 1 else ""
        loss = "" if self.loss is Loss.NFT else f", {self.loss}"
        return f"{self.prompts}x{GROUP}, {self.steps} steps, {self.timesteps} trained{updates}{loss}"


class Machines(msgspec.Struct, frozen=True):
    """Trainers, and slots that roll out."""

    trainers: int
    rollers: int
    speed: float = 1.0
    """Speed of a slot that rolls out, relative to a trainer."""

    @property
    def slots(self) -> int:
        return self.trainers + self.rollers

    @property
    def name(self) -> str:
        slower = "" if self.speed == 1.0 else f" at {self.speed:g} of the speed"
        return f"{self.trainers}+{self.rollers}{slower}"


class Cell(msgspec.Struct, frozen=True):
    """One column of the table."""

    profile: str
    machines: Machines
    setting: Setting

    @property
    def name(self) -> str:
        return f"{self.profile.rpartition('-')[2]} px, {self.machines.name}, {self.setting.name}"


@cache
def profile_of(name: str) -> Profile:
    """The profile, with gangs up to the size of a pool of all slots, derived as the shipped ones are."""
    profile = Profile.load(name)
    times = profile.operations[Operation.OPTIMIZER_STEP]
    (alone,) = (point for point in times.points if point.degree == 1)
    more = gangs(alone, GRADIENT_BYTES, degrees=POOLS)
    wider = msgspec.structs.replace(times, series=(*times.series, more))
    return msgspec.structs.replace(profile, operations={**profile.operations, Operation.OPTIMIZER_STEP: wider})


def batches(profile: Profile) -> list[int]:
    """Timed batches of a denoising step."""
    return sorted({point.batch for point in profile.operations[Operation.DENOISE_STEP].points if point.degree == 1})


def offered(profile: Profile, row: Row | str) -> list[int]:
    """Timed batches; with TAG also those halfway between two of them, with interpolated seconds.

    With TAG the number of groups that end at a time matters, and doubling the rows is coarse: a batch of 12 is nearly
    as efficient as one of 16 and lasts three quarters as long. With asynchrony it matters less: of six settings tried,
    a halfway batch was best in none.
    """
    timed = batches(profile)
    if row != Row.TAG:
        return timed
    return sorted({*timed, *((fewer + more) // 2 for fewer, more in pairwise(timed))})


def sensible_rows(cell: Cell, row: Row | str) -> list[int]:
    """Offered batches, without those so small that a slot's share would take many rounds, and even shares.

    No batch is larger than a share, because the first slot with new weights would draw more than its share. If trainers
    help they are first, and may draw everything.
    """
    samples, machines = cell.setting.samples, cell.machines
    shares = {-(-samples // slots) for slots in (machines.rollers, machines.slots)}
    largest = max(batches(profile_of(cell.profile)))
    fewest = min(max(shares), ROUNDS * largest // 2)
    known = [rows for rows in offered(profile_of(cell.profile), row) if fewest <= rows * ROUNDS]
    found = {rows for rows in known if rows <= max(shares)}
    if row != COLOCATED and Row.TAG in Row(row).before:
        shares.add(-(-samples // machines.trainers))
    return sorted(found | {share for share in shares if share <= largest})


def least_groups(cell: Cell, row: Row) -> list[int]:
    """Numbers of groups per part: the fewest that fill the batches of all ranks over pairs, or over samples."""
    profile, setting = profile_of(cell.profile), cell.setting
    rows = efficient_batch(profile, Operation.TRAIN_TIMESTEP) * cell.machines.trainers
    over_samples, over_pairs = -(-rows // GROUP), -(-rows // (GROUP * setting.timesteps))
    return sorted({over_pairs, over_samples}) if Row.TSP in row.before else [over_samples]


class Choice(NamedTuple):
    """The choices of a row of the table, and their outcome."""

    seconds: float
    """Simulated seconds of one iteration."""
    rows: int
    """Samples that a slot draws together."""
    units: tuple[str, ...]
    """Settings of the size of a part."""


def best(cell: Cell, row: Row | str, seed: int) -> Choice:
    """The best choice of a row."""
    found = min(quickest(cell, row, rows, seed) for rows in sensible_rows(cell, row))
    if row != Row.ASYNC:
        return found
    return found._replace(seconds=_seconds(cell, row, found.rows, seed, found.units, SETTLED_LONG))


def quickest(cell: Cell, row: Row | str, rows: int, seed: int) -> Choice:
    """The best choice with this number of rows."""
    choices: list[tuple[str, ...]] = [()] if row == COLOCATED else units_of(cell, Row(row))
    settled = SETTLED_AHEAD if row == Row.ASYNC else SETTLED
    return min(Choice(_seconds(cell, row, rows, seed, units, settled), rows, units) for units in choices)


def units_of(cell: Cell, row: Row) -> list[tuple[str, ...]]:
    """The possible sizes of a part."""
    return [(f"pipeline.least_groups={groups}",) for groups in least_groups(cell, row)]


def _seconds(
    cell: Cell, row: Row | str, rows: int, seed: int, units: tuple[str, ...], settled: tuple[int, int]
) -> float:
    machines = cell.machines
    if row == COLOCATED:
        recipe = f"{cell.setting.loss.recipe}+{COLOCATED}"
        made = [f"cluster.reserved={machines.slots}", f"cluster.gang={machines.slots}", "cluster.spot=0"]
    else:
        recipe = f"{cell.setting.loss.recipe}+disaggregated-serial"
        made = [f"cluster.reserved={machines.trainers}", f"cluster.gang={machines.trainers}"]
        made += [f"cluster.spot={machines.rollers}", f"cluster.fleet=[{{speed: {machines.speed}}}]"]
        made += [switch for each in Row(row).before for switch in SWITCHES[each]]
        made += units
    ends = _ends(cell, recipe, [*made, f"seed={seed}", f"iterations={settled[1] + 1}"], rows)
    return (ends[settled[1] - 1] - ends[settled[0] - 1]) / (settled[1] - settled[0])


def _ends(cell: Cell, recipe: str, made: list[str], rows: int) -> dict[int, float]:
    """End of each iteration, in seconds of the run."""
    profile, prices = profile_of(cell.profile), PriceTable.load()
    overrides = [*STEADY, *cell.setting.overrides, *made]
    config = simulated_config(recipe, overrides, Assumed(profile=profile, prices=prices))
    settings = config.model_dump()
    settings["cluster"]["rows"] = rows
    config = RunConfig.model_validate(settings)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "run")
        folder.path.mkdir()
        numerics = model_numerics(config, LEARNING)
        simulate(Simulation(config=config, recipe=recipe, profile=profile, numerics=numerics, prices=prices), folder)
        return {r.event.iteration: r.at for r in read(folder.journal) if isinstance(r.event, IterationDone)}
