"""What is forecast: a workload, a fleet and its price, over durations that a profile tells."""

from typing import Protocol

import msgspec

from spotlight.control.explore.config import ExploreConfig
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.profiles import Operation
from spotlight.core.errors import ConfigError

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
    runs: int = 1
    """Stretches of rows that batches are cut from: 1 over pairs, one for each trained timestep over samples."""
    pipeline: PipelineConfig = PipelineConfig()

    @property
    def samples(self) -> int:
        return self.prompts * self.group_size

    @property
    def groups_by_update(self) -> list[int]:
        """Groups are dealt out to the updates in turn."""
        updates = min(self.updates, self.prompts)
        return [len(range(first, self.prompts, updates)) for first in range(updates)]

    @property
    def samples_by_update(self) -> list[int]:
        return [groups * self.group_size for groups in self.groups_by_update]


class Team(msgspec.Struct, frozen=True):
    """Slots that draw together: some as fast as the profile, some slower or faster than that."""

    plain: int
    others: int = 0
    speed: float = 1.0
    """Of the others."""

    @property
    def total(self) -> float:
        """In slots as fast as the profile."""
        return self.plain + self.others * self.speed

    def __bool__(self) -> bool:
        return bool(self.plain + self.others)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of one kind of hardware, but that spot slots may be of another speed."""

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
    spot_speed: float = 1.0
    """Of a spot slot, where a reserved one has 1."""

    @property
    def all_slots(self) -> int:
        return (self.reserved + self.spot) * self.slots

    @property
    def beside_training(self) -> int:
        return self.all_slots - self.gang

    @property
    def everybody(self) -> Team:
        return Team(self.reserved * self.slots, self.spot * self.slots, self.spot_speed)

    @property
    def beside(self) -> Team:
        """Those that do not train."""
        return Team(self.reserved * self.slots - self.gang, self.spot * self.slots, self.spot_speed)


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
