"""Sections `cluster` and `market` of a recipe; free of torch."""

from typing import Self

from pydantic import Field, model_validator

from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.market.traces import Trace
from spotlight.core.errors import ConfigError
from spotlight.core.section import Section
from spotlight.core.work import SlotClass
from spotlight.runtime.pool import NodeSpec


class ClusterConfig(Section):
    """The machines of a run, and what is expected of the processes on them."""

    reserved: int = Field(default=1, ge=1)
    """Reserved nodes; the first `gang` of them train."""
    gang: int = Field(default=1, ge=1)
    """Slots that train together, one on each of the first reserved nodes. Real runs train on one so far; the simulator
    charges any number as data-parallel ranks."""
    spot: int = Field(default=2, ge=0)
    """Spot nodes, which come and go as the market says; 0 is a reserved-only run."""
    slots: int = Field(default=1, ge=1)
    """Slots, and so workers, per node."""
    rows: int = Field(default=8, ge=1)
    """Samples in flight per worker."""
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
    def _gang_is_reserved(self) -> Self:
        if self.gang > self.reserved:
            raise ConfigError(
                f"cluster.gang is {self.gang} but cluster.reserved is {self.reserved}, and only reserved nodes train; "
                f"set gang to {self.reserved} or less, or reserve more."
            )
        return self

    def reserved_nodes(self, price: str = "") -> list[NodeSpec]:
        return [
            self._node(f"reserved-{number}", SlotClass.RESERVED, price, trains=number <= self.gang)
            for number in range(1, self.reserved + 1)
        ]

    def spot_nodes(self, price: str = "") -> list[NodeSpec]:
        return [self._node(f"spot-{number}", SlotClass.SPOT, price, trains=False) for number in range(1, self.spot + 1)]

    def _node(self, name: str, slot_class: SlotClass, price: str, trains: bool) -> NodeSpec:
        return NodeSpec(name=name, slot_class=slot_class, slots=self.slots, price=price, rows=self.rows, trains=trains)


class MarketConfig(Section):
    """How spot nodes come and go, and what all nodes cost."""

    trace: str | None = None
    """A shipped trace's name or a file; None keeps every spot node for the whole run."""
    speed: float = Field(default=1.0, gt=0)
    """How many seconds of the trace pass in one."""
    notice_s: float | None = Field(default=None, ge=0)
    """Seconds of the trace by which every loss is announced before; 0 announces none, None leaves it to the trace."""
    boot_s: float = Field(default=0.0, ge=0)
    """Seconds that a spot node is paid for before its workers begin to start."""
    fallback_s: float | None = Field(default=None, ge=0)
    """Seconds that spot nodes may stay away before nodes at the on-demand price stand in for them; None: for ever."""
    reserved_price: str = "aws-p5-h100"
    """Row of the price table that reserved slots are billed by, at its on-demand price."""
    spot_price: str = "aws-p5-h100"
    """Row of the price table that spot slots are billed by, at its spot price."""

    def replayed(self, nodes: int) -> Trace | None:
        """What a run with so many spot nodes replays: its trace with notices and speed as set here."""
        if self.trace is None:
            return None
        trace = Trace.load(self.trace, nodes)
        if self.notice_s is not None:
            trace = trace.with_notice(self.notice_s)
        return trace.compressed(self.speed)
