"""Section `cluster.elastic` of a recipe: sequence parallelism inside a node; free of torch."""

from enum import StrEnum
from math import inf
from typing import Literal, Self

from pydantic import Field, model_validator

from spotlight.control.elastic.efficiency import DEFAULTS, DOUBT, Efficiency
from spotlight.core.errors import ConfigError
from spotlight.core.section import Section


class MixedGpus(StrEnum):
    """Whether one crew may have slots of different kinds."""

    ALLOW = "allow"
    """It may, at the pace of the slowest, which the reason of the layout names."""
    REFUSE = "refuse"


class Transport(StrEnum):
    """Library that exchanges tensors between the members of a crew."""

    GLOO = "gloo"
    NCCL = "nccl"


class ElasticConfig(Section):
    """When the slots of a node work on one sample together, and their timeouts."""

    degrees: Literal["auto"] | tuple[int, ...] = "auto"
    """Numbers of slots that a crew may have: auto is any number that heads and slots allow; [1] forms no crews; 1 is
    always allowed."""
    max_degree: int | None = Field(default=None)
    """The largest crew; None leaves it to the efficiency table: about 2 for 512x512 and 4 for 1280x1280."""
    transport: Transport = Transport.GLOO
    """Library that exchanges tensors; nccl needs a GPU per slot and is unverified."""
    mixed_gpus: MixedGpus = MixedGpus.ALLOW
    """allow or refuse slots of different kinds in one crew."""
    gain: float = Field(default=0.2, ge=0, lt=1)
    """Speed, in slots, that another slot must add to its crew; near 0 is enough when a sample is urgent."""
    speed_ups: tuple[tuple[int, int, float], ...] = ()
    """(image tokens, degree, speed-up over one slot) of a profile, instead of the built-in table."""
    measure: bool = True
    """Whether measured speeds correct the table."""
    hysteresis_s: float = Field(default=3.0, ge=0)
    """Seconds between two changes of layout that nothing forces."""
    forming_s: float = Field(default=1.0, gt=0)
    """Seconds that prepared members may take to connect."""
    quiesce_s: float = Field(default=0.5, gt=0)
    """Seconds that members of a broken crew may take to drop it; slower ones are killed."""
    boundary_s: float = Field(default=10.0, gt=0)
    """Seconds that a worker may take to reach its next step boundary: a step, or decoding, or loading weights."""
    step_floor_s: float = Field(default=2.0, gt=0)
    """Seconds that a crew's forward may always take; members that hang longer are killed."""
    step_factor: float = Field(default=4.0, ge=1)
    """Deadline of a forward, in 99th percentiles of recent similar ones, where that is longer than the floor."""
    first_step_s: float = Field(default=60.0, gt=0)
    """Seconds that a forward of a new size may take: it may have to be compiled."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.max_degree is not None and self.max_degree < 1:
            raise ConfigError(
                f"cluster.elastic.max_degree is {self.max_degree}, but a crew has at least one slot; use 1 or more, or "
                "leave it out."
            )
        for tokens, degree, speed_up in self.speed_ups:
            if tokens < 1 or degree < 2 or not 0 < speed_up <= degree:
                raise ConfigError(
                    f"cluster.elastic.speed_ups has the entry {[tokens, degree, speed_up]}, but it must be image "
                    "tokens, a degree of 2 or more, and a speed-up above 0 and at most the degree; correct it."
                )
        if self.degrees == "auto":
            return self
        listed = list(self.degrees)
        if not listed or min(listed) < 1 or len(set(listed)) < len(listed):
            raise ConfigError(
                f"cluster.elastic.degrees is {listed}, but it must name each number of slots once and none below 1; "
                "use for example [1, 2, 4], or auto."
            )
        if self.max_degree is not None and max(listed) > self.max_degree:
            raise ConfigError(
                f"cluster.elastic.degrees is {listed} but cluster.elastic.max_degree is {self.max_degree}, which "
                "contradict each other; leave max_degree out."
            )
        return self

    @property
    def patience_s(self) -> float:
        """Seconds that a prepared worker waits: longer than the others may take to a boundary and to connect."""
        return self.boundary_s + self.forming_s + 1.0

    @property
    def exchange_s(self) -> float:
        """Seconds that a member waits in one exchange: less than a step's deadline, so that hang victims report."""
        return 0.75 * self.step_floor_s

    @property
    def first_exchange_s(self) -> float:
        """Seconds per exchange in a crew's first forward, which one member may compile for longer than another."""
        return 0.75 * max(self.first_step_s, self.step_floor_s)

    def efficiency(self) -> Efficiency:
        """A new table for one node."""
        return Efficiency(self.speed_ups or DEFAULTS, DOUBT if self.measure else inf)

    def check(self, heads: int, slots: int) -> None:
        """Refuse degrees that a node of `slots` slots, or a model of `heads` heads, cannot have."""
        limit = min(heads, slots)
        for name, degree in (("degrees", max(self._listed())), ("max_degree", self.max_degree or 1)):
            if degree > limit:
                short = f"the model has {heads} heads" if degree > heads else f"a node has {slots} slots"
                legal = ", ".join(str(each) for each in range(1, limit + 1))
                raise ConfigError(
                    f"cluster.elastic.{name} needs {degree} slots per crew, but {short} and each member needs one "
                    f"of its own; use degrees out of {legal}."
                )

    def legal_degrees(self, heads: int, slots: int) -> tuple[int, ...]:
        """Degrees that crews of `slots` live slots may have, ascending; 1 is always among them."""
        limit = max(1, min(heads, slots, self.max_degree or heads))
        wanted = range(1, limit + 1) if self.degrees == "auto" else self._listed()
        return tuple(sorted({1, *(degree for degree in wanted if degree <= limit)}))

    def _listed(self) -> tuple[int, ...]:
        return (1,) if self.degrees == "auto" else tuple(self.degrees)
