"""Sections `cluster` and `market` of a recipe; free of torch."""

from typing import Self

from pydantic import Field, model_validator

from spotlight.compute.train.config import AUTO, RowCount
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.market.capacity import NAME as STAND_IN
from spotlight.control.market.traces import PUNCTUALITY_S, Trace
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.errors import ConfigError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.section import Section
from spotlight.core.work import SlotClass

DETERMINISTIC_ROWS = 8
"""Of `rows: auto` in a deterministic run; a multiple of 4, as `compute/rollout/engine.py` needs it."""


class ClusterConfig(Section):
    """The machines of a run, and what is expected of the processes on them."""

    reserved: int = Field(default=1, ge=1)
    """Reserved nodes; the first `gang` of them train."""
    gang: int = Field(default=1, ge=1)
    """Slots that train together, one on each of the first reserved nodes. Real runs train on one so far; the simulator
    charges any number as data-parallel ranks."""
    spot: int = Field(default=2, ge=0)
    """Spot nodes, which come and go as the market says; 0 is a reserved-only run."""
    spot_speed: float = Field(default=1.0, gt=0)
    """Speed of a spot slot, as a share of the profile's: below 1 where cheaper GPUs roll out than train. Simulations
    and paced runs go by it; a run that computes is as fast as its machines are."""
    slots: int = Field(default=1, ge=1)
    """Slots, and so workers, per node."""
    share_devices: bool = False
    """Whether several slots may compute on one GPU; without it a run with more slots than GPUs is refused. Slots on the
    CPU always share it."""
    rows: RowCount = AUTO
    """Samples in flight per worker. `auto` measures, when a worker starts, how many its device rolls out best within
    its share of the memory, up to a slot's share of an iteration. In a deterministic run it is 8, and in a paced or
    simulated one as many as the profile finds efficient: nothing is measured there."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per worker."""
    commit_every: int = Field(default=2, ge=1)
    """Denoising steps between commits of a flight: what a loss without notice costs at most."""
    heartbeat_s: float = Field(default=0.5, gt=0)
    """Seconds between a worker's signs of life."""
    silence_s: float = Field(default=10.0, gt=0)
    """Seconds after which a silent worker is taken for dead."""
    start_s: float = Field(default=180.0, gt=0)
    """Seconds that a worker may take to load the model."""
    drain_s: float = Field(default=20.0, gt=0)
    """Seconds that workers may take to hand back and exit."""
    store: str | None = None
    """Folder for the nodes' copies of published weights; None: shared memory. Weights that it has no room for go to the
    run's folder, with a warning."""
    pace: str | None = None
    """A profile, shipped or a file, whose durations the workers wait for instead of computing: real processes, sockets
    and kills on a machine that could not compute that much. None computes."""
    pace_speed: float = Field(default=1.0, gt=0)
    """How many seconds of that profile pass in one; set market.speed to the same for a trace to keep step."""
    elastic: ElasticConfig = ElasticConfig()
    """How the slots of a node share samples; with one slot per node there is nothing to share."""

    @model_validator(mode="after")
    def _patience_exceeds_heartbeat(self) -> Self:
        if self.silence_s < 4 * self.heartbeat_s:
            raise ConfigError(
                f"cluster.silence_s is {self.silence_s:g} but cluster.heartbeat_s is {self.heartbeat_s:g}, so that a "
                f"busy worker would be taken for dead; raise silence_s to {4 * self.heartbeat_s:g} or more."
            )
        return self

    @model_validator(mode="after")
    def _pace_is_known(self) -> Self:
        if self.pace is not None:
            Profile.load(self.pace)
            if self.slots > 1:
                raise ConfigError(
                    f"cluster.pace is {self.pace} but cluster.slots is {self.slots}, and paced workers form no crews; "
                    "set slots to 1 and use more nodes."
                )
        return self

    @model_validator(mode="after")
    def _gang_is_reserved(self) -> Self:
        if self.gang > self.reserved:
            raise ConfigError(
                f"cluster.gang is {self.gang} but cluster.reserved is {self.reserved}, and only reserved nodes train; "
                f"set gang to {self.reserved} or less, or reserve more."
            )
        return self

    def with_fixed_rows(self, deterministic: bool) -> Self:
        """With a number in place of `auto` where the rows must not be measured."""
        if self.rows != AUTO or not (deterministic or self.pace is not None):
            return self
        fixed = DETERMINISTIC_ROWS
        if self.pace is not None and not deterministic:
            fixed = efficient_batch(Profile.load(self.pace), Operation.DENOISE_STEP)
        return self.model_copy(update={"rows": fixed})

    def speed(self, slot_class: SlotClass) -> float:
        """Of a slot, where a profile's is 1."""
        return self.spot_speed if slot_class is SlotClass.SPOT else 1.0

    def reserved_nodes(self, price: str = "") -> list[NodeSpec]:
        return [
            self._node(f"reserved-{number}", SlotClass.RESERVED, price, trains=number <= self.gang)
            for number in range(1, self.reserved + 1)
        ]

    def spot_nodes(self, price: str = "", boot_s: float = 0.0) -> list[NodeSpec]:
        return [self._node(f"spot-{number}", SlotClass.SPOT, price, boot_s) for number in range(1, self.spot + 1)]

    def stand_ins(self, price: str = "", boot_s: float = 0.0) -> list[NodeSpec]:
        """Nodes that may be rented in place of spot nodes: nobody takes them, and they do not train."""
        numbers = range(1, self.spot + 1)
        return [self._node(STAND_IN.format(number), SlotClass.RESERVED, price, boot_s) for number in numbers]

    def _node(
        self, name: str, slot_class: SlotClass, price: str, boot_s: float = 0.0, trains: bool = False
    ) -> NodeSpec:
        return NodeSpec(
            name=name,
            slot_class=slot_class,
            slots=self.slots,
            price=price,
            rows=None if self.rows == AUTO else self.rows,
            trains=trains,
            boot_s=boot_s,
        )


class MarketConfig(Section):
    """How spot nodes come and go, and what all nodes cost."""

    trace: str | None = None
    """A shipped trace's name or a file; None keeps every spot node for the whole run. Without spot nodes, not used."""
    start_h: float = Field(default=0.0, ge=0)
    """Hour of the trace at which its replay begins; who is up then comes at once."""
    speed: float = Field(default=1.0, gt=0)
    """How many seconds of the trace pass in one."""
    notice_s: float | None = Field(default=None, ge=0)
    """Seconds of the trace by which every loss is announced before; 0 announces none, None leaves it to the trace."""
    boot_s: float = Field(default=0.0, ge=0)
    """Seconds that a spot node, or one that stands in, is paid for before its workers begin to start; a real run
    divides them by `speed`, as the trace."""
    fallback_s: float | None = Field(default=None, ge=0)
    """Seconds that spot nodes may stay away before nodes at the on-demand price stand in for them, divided likewise;
    None: for ever."""
    reserved_price: str = "aws-p5-h100"
    """Row of the price table that reserved slots and stand-ins are billed by, at its on-demand price."""
    spot_price: str = "aws-p5-h100"
    """Row of the price table that spot slots are billed by, at its spot price."""

    def replayed(self, nodes: int) -> Trace | None:
        """What a run with so many spot nodes replays: its trace from `start_h` on, with notices and speed as set."""
        if self.trace is None or not nodes:
            return None
        trace = Trace.load(self.trace, nodes)
        if self.notice_s is not None:
            trace = trace.with_notice(self.notice_s)
        if self.start_h:
            hours = trace.seconds / 3600
            if self.start_h >= hours:
                raise ConfigError(
                    f"market.start_h is {self.start_h:g} but the trace '{self.trace}' is {hours:.2f} hours long, so "
                    "that nothing of it would be left to replay; begin earlier."
                )
            # A moment more than is left: what happens at the very end is part of it.
            trace = trace.window(self.start_h, hours - self.start_h + PUNCTUALITY_S / 3600)
        return trace.compressed(self.speed)

    def billed_by(self, spot: int) -> dict[SlotClass, str]:
        """The rows of the price table that a run with so many spot nodes needs."""
        rows = {SlotClass.RESERVED: self.reserved_price}
        return rows | {SlotClass.SPOT: self.spot_price} if spot else rows
