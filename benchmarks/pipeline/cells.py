"""What is compared: settings, machines, and the rows of the ablation, each with the switches before it."""

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
"""Rewards are drawn from this fit; no duration depends on them."""
GROUP = 16
GRADIENT_BYTES = 1_699_000_000
"""Of adapters of rank 64, as the profiles say."""
SETTLED = (2, 4)
"""Iterations between whose ends the period of a run is measured, which has one more: nothing is new, nor ending."""
SETTLED_AHEAD = (6, 18)
"""The same where iterations overlap, and each begins where the one before left off."""
SETTLED_LONG = (6, 54)
"""The same for the choice that is told: a few iterations in a row may draw ahead more than they leave behind, and the
best of many choices is one whose iterations happened to, and would seem quicker than any schedule is."""
ROUNDS = 8
"""In which a slot draws its share at most, where it may choose how many samples it draws together."""
STEADY = ("eval.every=1000", "eval.prompts=1", "output.checkpoint_every=1000")
"""Rollouts, training and publication alone: evaluation and checkpoints are the same in every row."""


class Row(StrEnum):
    """Of the table; each has all that those before it have."""

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
    """What is trained: the recipe it comes from, and where it says how many timesteps."""

    NFT = "NFT"
    FLOW_GRPO = "Flow-GRPO"

    @property
    def recipe(self) -> str:
        return "words-large-nft" if self is Loss.NFT else "words-large-flow-grpo"

    @property
    def timesteps(self) -> str:
        return "algorithm.timesteps_per_sample" if self is Loss.NFT else "rollout.window_size"


class Setting(msgspec.Struct, frozen=True):
    """What an iteration consists of."""

    prompts: int
    steps: int
    timesteps: int
    updates: int = 1
    loss: Loss = Loss.NFT

    @property
    def samples(self) -> int:
        return self.prompts * GROUP

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
    """Of one that rolls out, where a trainer's is 1."""

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
    """With gangs of as many ranks as a pool of all slots has, derived as the shipped ones are."""
    profile = Profile.load(name)
    times = profile.operations[Operation.OPTIMIZER_STEP]
    (alone,) = (point for point in times.points if point.degree == 1)
    more = gangs(alone, GRADIENT_BYTES, degrees=(32,))
    wider = msgspec.structs.replace(times, series=(*times.series, more))
    return msgspec.structs.replace(profile, operations={**profile.operations, Operation.OPTIMIZER_STEP: wider})


def batches(profile: Profile) -> list[int]:
    """Rows of a denoising step that were timed."""
    return sorted({point.batch for point in profile.operations[Operation.DENOISE_STEP].points if point.degree == 1})


def offered(profile: Profile, row: Row | str) -> list[int]:
    """Rows that were timed; with TAG also those halfway between two of them, whose seconds are halfway too.

    Twice as many rows are a large step where it matters how many groups end at a time: a batch of 12 is nearly as
    efficient as one of 16, and lasts three quarters as long. Where the next iteration follows it matters less: of six
    settings tried with asynchrony, those halfway were best in none.
    """
    timed = batches(profile)
    if row != Row.TAG:
        return timed
    return sorted({*timed, *((fewer + more) // 2 for fewer, more in pairwise(timed))})


def sensible_rows(cell: Cell, row: Row | str) -> list[int]:
    """What is offered, but nothing so small that a slot's share would take many rounds, and even shares.

    None larger than a share: whoever holds new weights first would draw more than it. Where trainers help these are
    the first, and may draw everything.
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
    """As few as fill the batches of all ranks; where these are over pairs, as many as before may do as well."""
    profile, setting = profile_of(cell.profile), cell.setting
    rows = efficient_batch(profile, Operation.TRAIN_TIMESTEP) * cell.machines.trainers
    over_samples, over_pairs = -(-rows // GROUP), -(-rows // (GROUP * setting.timesteps))
    return sorted({over_pairs, over_samples}) if Row.TSP in row.before else [over_samples]


class Choice(NamedTuple):
    """What a row of the table may choose, and what came out."""

    seconds: float
    """Of one iteration, simulated."""
    rows: int
    """Samples that a slot draws together."""
    units: tuple[str, ...]
    """How much is trained and begun at once."""


def best(cell: Cell, row: Row | str, seed: int) -> Choice:
    """Of all that the row may choose."""
    found = min(quickest(cell, row, rows, seed) for rows in sensible_rows(cell, row))
    if row != Row.ASYNC:
        return found
    return found._replace(seconds=_seconds(cell, row, found.rows, seed, found.units, SETTLED_LONG))


def quickest(cell: Cell, row: Row | str, rows: int, seed: int) -> Choice:
    """With so many rows."""
    choices: list[tuple[str, ...]] = [()] if row == COLOCATED else units_of(cell, Row(row))
    settled = SETTLED_AHEAD if row == Row.ASYNC else SETTLED
    return min(Choice(_seconds(cell, row, rows, seed, units, settled), rows, units) for units in choices)


def units_of(cell: Cell, row: Row) -> list[tuple[str, ...]]:
    """The sizes that a part may have."""
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
        made += [f"cluster.spot={machines.rollers}", f"cluster.spot_speed={machines.speed}"]
        made += [switch for each in Row(row).before for switch in SWITCHES[each]]
        made += units
    ends = _ends(cell, recipe, [*made, f"seed={seed}", f"iterations={settled[1] + 1}"], rows)
    return (ends[settled[1] - 1] - ends[settled[0] - 1]) / (settled[1] - settled[0])


def _ends(cell: Cell, recipe: str, made: list[str], rows: int) -> dict[int, float]:
    """Of iterations, in seconds of the run."""
    setting, profile, prices = cell.setting, profile_of(cell.profile), PriceTable.load()
    work = [f"rollout.prompts={setting.prompts}", f"rollout.group_size={GROUP}", f"rollout.steps={setting.steps}"]
    # Rewards are drawn by the initial noise: where a group shares it there would be nothing to compare.
    work += ["rollout.initial_noise=per_sample"]
    work += [f"{setting.loss.timesteps}={setting.timesteps}", f"train.updates_per_iteration={setting.updates}"]
    config = simulated_config(recipe, [*STEADY, *work, *made], Assumed(profile=profile, prices=prices))
    settings = config.model_dump()
    settings["cluster"]["rows"] = rows
    config = RunConfig.model_validate(settings)
    with tempfile.TemporaryDirectory() as scratch:
        folder = RunFolder(Path(scratch) / "run")
        folder.path.mkdir()
        numerics = model_numerics(config, LEARNING)
        simulate(Simulation(config=config, recipe=recipe, profile=profile, numerics=numerics, prices=prices), folder)
        return {r.event.iteration: r.at for r in read(folder.journal) if isinstance(r.event, IterationDone)}
