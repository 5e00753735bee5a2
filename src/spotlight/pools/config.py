"""Sections `cluster` and `market` of a recipe; free of torch."""

from collections.abc import Sequence
from enum import StrEnum
from itertools import cycle
from typing import Self

import msgspec
from pydantic import Field, model_validator

from spotlight.compute.train.config import AUTO, RowCount
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.market.capacity import NAME as STAND_IN
from spotlight.control.market.traces import PUNCTUALITY_S, Trace
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.errors import ConfigError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.section import NumberOrAuto, Section
from spotlight.core.tls import split_address
from spotlight.core.work import SlotClass
from spotlight.node.notices.config import NoticesConfig

AUTO_FALLBACK_S = 300.0
"""Seconds of absence before a stand-in, with `market.fallback_s: auto`."""
DETERMINISTIC_ROWS = 8
"""Rows of `rows: auto` in a deterministic run; `compute/rollout/engine.py` needs a multiple of 4."""


class PoolKind(StrEnum):
    """Where the spot nodes of a run come from."""

    LOCAL = "local"
    """Processes on the controller's machine."""
    RAY = "ray"
    """Machines of a Ray cluster."""
    JOIN = "join"
    """Machines that join by themselves, with `spotlight join`."""


class SpotGroup(Section):
    """Spot nodes that are alike."""

    nodes: int = Field(default=1, ge=1)
    """Number of consecutive nodes of this kind."""
    kind: str = ""
    """Kind of their GPUs in simulations; workers that compute report their own."""
    speed: float = Field(default=1.0, gt=0)
    """Speed of a slot relative to the profile, in simulations and paced runs."""
    zone: str = ""
    """Name of their zone, by which timelines group their slots."""
    price: str | None = None
    """Row of the price table that they are billed by; None: `market.spot_price`."""


class ClusterConfig(Section):
    """Machines of a run, and limits of the processes on them."""

    reserved: int = Field(default=1, ge=1)
    """Reserved nodes; the first slots of the first ones train."""
    gang: int = Field(default=1, ge=1)
    """Training ranks: reserved slots that train together, all slots of a node before the next node's."""
    gang_elastic: bool = False
    """Whether fewer ranks go on training while some are missing; the gang grows again at the end of an iteration."""
    gang_port: int = Field(default=0, ge=0, le=65535)
    """TCP port on which rank 0 waits for the other ranks; 0: any free port."""
    spot: int = Field(default=2, ge=0)
    """Spot nodes, which come and go by the market's trace; 0 is a reserved-only run. With `pool: join` and `pool: ray`,
    the number that is expected to join."""
    pool: PoolKind = PoolKind.LOCAL
    """Where the spot nodes come from; the reserved nodes are always on the controller's machine."""
    listen: str | None = None
    """HOST:PORT at which other machines can join the run, over TLS and with its token; port 0 is any free one. None:
    the run is reachable from this machine alone."""
    address: str = "auto"
    """With `pool: ray`, the Ray cluster: HOST:PORT of its head, `auto` for the one that this machine is a node of, or
    ray://HOST:PORT from outside of the cluster."""
    ray_spot_label: str | None = None
    """Mark of the Ray nodes that are spot nodes: a label KEY=VALUE, or the name of a custom resource. None: the label
    spotlight=spot or ray.io/market-type=spot, or the custom resource `spot`."""
    ray_reserved_label: str | None = None
    """Mark of the Ray nodes that roll out as reserved nodes. None: the label spotlight=reserved, or the custom resource
    `reserved`."""
    fleet: tuple[SpotGroup, ...] = ()
    """Kinds of spot nodes, in the order of their numbers and repeated: [{kind: h200}, {kind: l40s, speed: 0.3}] makes
    every second node of `pool: local`, or of a simulation, an L40S. Empty: all nodes are alike."""
    slots: int = Field(default=1, ge=1)
    """Slots, and so workers, per node."""
    share_devices: bool = False
    """Whether several slots may compute on one GPU; without it a run with more slots than GPUs is refused. Slots on the
    CPU always share it."""
    rows: RowCount = AUTO
    """Samples in flight per worker. With `auto` a worker measures at its start the fastest count that fits its share of
    the device's memory, up to a slot's share of an iteration. `auto` is 8 in a deterministic run, and the profile's
    efficient batch in a paced or simulated one."""
    threads: int = Field(default=1, ge=1)
    """CPU threads per worker."""
    commit_every: int = Field(default=2, ge=1)
    """Denoising steps between commits of a flight: the most that a loss without notice costs."""
    heartbeat_s: float = Field(default=0.5, gt=0)
    """Seconds between a worker's heartbeats."""
    silence_s: float = Field(default=10.0, gt=0)
    """Seconds of silence after which a worker counts as dead."""
    grace_s: float = Field(default=20.0, gt=0)
    """Seconds in which a node whose connection broke can connect again; its workers keep their samples meanwhile."""
    start_s: float = Field(default=180.0, gt=0)
    """Seconds for a worker to load the model."""
    drain_s: float = Field(default=20.0, gt=0)
    """Seconds for workers to hand back their samples and exit."""
    store: str | None = None
    """Folder for the nodes' copies of published weights; None: shared memory. Weights that do not fit go to the run's
    folder, with a warning."""
    pace: str | None = None
    """A profile, shipped or a file, whose durations the workers wait for instead of computing: real processes, sockets
    and kills on a machine too small for the computation. None computes."""
    pace_speed: float = Field(default=1.0, gt=0)
    """Seconds of that profile per second; set market.speed to the same value to keep a trace in step."""
    notices: NoticesConfig = NoticesConfig()
    """Preemption notices of the machines; those of `market.trace` come beside them."""
    elastic: ElasticConfig = ElasticConfig()
    """Sharing of samples among the slots of a node; unused with one slot per node."""

    @model_validator(mode="after")
    def _patience_exceeds_heartbeat(self) -> Self:
        if self.silence_s < 4 * self.heartbeat_s:
            raise ConfigError(
                f"cluster.silence_s is {self.silence_s:g} but cluster.heartbeat_s is {self.heartbeat_s:g}, so a busy "
                f"worker would count as dead; raise silence_s to {4 * self.heartbeat_s:g} or more."
            )
        return self

    @model_validator(mode="after")
    def _pool_can_be_reached(self) -> Self:
        if self.listen is not None:
            split_address(self.listen)
        if self.pool is PoolKind.RAY and self.address.startswith("ray://") and self.listen is None:
            raise ConfigError(
                f"cluster.address is {self.address} but cluster.listen is not set, and outside of the Ray cluster this "
                "machine's address is unknown to its nodes; set cluster.listen to HOST:PORT, as they reach it."
            )
        if self.pool is PoolKind.JOIN and self.listen is None:
            raise ConfigError(
                "cluster.pool is join but cluster.listen is not set, so no machine could join; set cluster.listen to "
                "HOST:PORT, an address of this machine."
            )
        if self.fleet and self.pool is not PoolKind.LOCAL:
            raise ConfigError(
                f"cluster.fleet is set but cluster.pool is {self.pool}, whose machines report zone and GPU themselves; "
                "leave cluster.fleet out, it is for the local pool and for simulations."
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
        if self.gang_port and self.gang_elastic and self.gang > 2:
            raise ConfigError(
                f"cluster.gang_port is {self.gang_port} but cluster.gang_elastic is true with {self.gang} ranks, and "
                "while the gang grows two of them would need that port; set cluster.gang_port to 0, or gang_elastic to "
                "false."
            )
        slots = self.reserved * self.slots
        if self.gang > slots:
            raise ConfigError(
                f"cluster.gang is {self.gang} but the run has {slots} reserved slots (cluster.reserved {self.reserved} "
                f"with {self.slots} each), and only reserved slots of the controller's machine train; set gang to "
                f"{slots} or less, or reserve more there."
            )
        return self

    def with_fixed_rows(self, deterministic: bool) -> Self:
        """Replace `auto` by a number where the rows are not measured: in deterministic and paced runs."""
        if self.rows != AUTO or not (deterministic or self.pace is not None):
            return self
        fixed = DETERMINISTIC_ROWS
        if self.pace is not None and not deterministic:
            fixed = efficient_batch(Profile.load(self.pace), Operation.DENOISE_STEP)
        return self.model_copy(update={"rows": fixed})

    def reserved_nodes(self, price: str = "") -> list[NodeSpec]:
        return [
            self._node(f"reserved-{number}", SlotClass.RESERVED, price, trains=self._trains_on(number))
            for number in range(1, self.reserved + 1)
        ]

    def check_market(self, market: "MarketConfig") -> None:
        """Refuse a market over nodes that cannot be started."""
        setting = "trace" if market.trace is not None else "fallback_s" if market.fallback_s is not None else ""
        if self.pool is not PoolKind.LOCAL and setting:
            raise ConfigError(
                f"cluster.pool is {self.pool.value} but market.{setting} is set, and its machines come and go by "
                "themselves; "
                f"leave market.{setting} out, or set cluster.pool to local."
            )

    def check_deterministic(self) -> None:
        """Refuse settings that give other bits in another run."""
        if self.gang_elastic:
            raise ConfigError(
                "deterministic is on but cluster.gang_elastic is true, and another number of ranks sums gradients in "
                "another order; set cluster.gang_elastic to false, or deterministic to false."
            )

    def check_sequence_ranks(self, ranks: int) -> None:
        """Refuse crews of training ranks that would span nodes or that an elastic gang would break."""
        uneven = [spec.name for spec in self.reserved_nodes() if spec.trains % ranks]
        if uneven:
            raise ConfigError(
                f"train.sequence_ranks is {ranks} but {uneven[0]} has {self.reserved_nodes()[0].trains} training slots "
                "at most, and ranks that split a sequence stay on one node; set it to a divisor of cluster.slots and "
                "of cluster.gang."
            )
        if ranks > 1 and self.gang_elastic:
            raise ConfigError(
                f"train.sequence_ranks is {ranks} but cluster.gang_elastic is true, and fewer ranks cannot be divided "
                "into crews of that size; set cluster.gang_elastic to false, or train.sequence_ranks to 1."
            )

    def training_slots(self) -> tuple[str, ...]:
        """The slots that train, as `node/slot`, by rank."""
        return tuple(f"{spec.name}/{slot}" for spec in self.reserved_nodes() for slot in range(spec.trains))

    def _trains_on(self, number: int) -> int:
        """Training slots of the reserved node with this number, from 1."""
        return max(0, min(self.slots, self.gang - (number - 1) * self.slots))

    def spot_nodes(self, price: str = "", boot_s: float = 0.0) -> list[NodeSpec]:
        groups = cycle([group for group in self.fleet or (SpotGroup(),) for _ in range(group.nodes)])
        return [
            msgspec.structs.replace(
                self._node(f"spot-{number}", SlotClass.SPOT, group.price or price, boot_s),
                kind=group.kind,
                speed=group.speed,
                zone=group.zone,
            )
            for number, group in zip(range(1, self.spot + 1), groups, strict=False)
        ]

    def stand_ins(self, price: str = "", boot_s: float = 0.0) -> list[NodeSpec]:
        """Nodes that may be rented in place of spot nodes: the market does not take them, and they do not train."""
        numbers = range(1, self.spot + 1)
        return [self._node(STAND_IN.format(number), SlotClass.RESERVED, price, boot_s) for number in numbers]

    def joined_node(self, name: str, slot_class: SlotClass, slots: int, price: str, zone: str) -> NodeSpec:
        """A node on a machine that joins: it does not train."""
        return msgspec.structs.replace(self._node(name, slot_class, price), slots=slots, zone=zone)

    def _node(self, name: str, slot_class: SlotClass, price: str, boot_s: float = 0.0, trains: int = 0) -> NodeSpec:
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
    """Trace of the spot nodes, and prices of all nodes."""

    trace: str | None = None
    """Name of a shipped trace, or a file; None keeps every spot node for the whole run. Unused without spot nodes.
    Several joined by `+` are zones, each with an even share of the spot nodes."""
    start_h: float = Field(default=0.0, ge=0)
    """Hour of the trace at which its replay begins; nodes that are up then start at once."""
    speed: float = Field(default=1.0, gt=0)
    """Seconds of the trace per second."""
    notice_s: float | None = Field(default=None, ge=0)
    """Seconds, in trace time, from the notice to every loss; 0: no notices; None: the trace's own."""
    boot_s: float = Field(default=0.0, ge=0)
    """Seconds that a spot node or a stand-in boots, and is paid for, before its workers start; a real run divides them
    by `speed`, as the trace."""
    fallback_s: NumberOrAuto | None = None
    """Seconds of absence of a spot node before a stand-in is rented at the on-demand price, divided by `speed`
    likewise; None: no stand-ins, and the run continues with fewer slots. `auto` waits 300 s, and rents only while the
    remaining iterations would otherwise end after `budget.max_hours`, and only as far as `budget.max_dollars` allows;
    with `budget.max_dollars` alone it rents whenever the money suffices. It rents nothing before the second iteration
    after a start or a resume has ended. `spotlight plan` shows what stand-ins cost and save on `trace`."""
    reserved_price: str = "aws-p5-h100"
    """Row of the price table that reserved slots and stand-ins are billed by, at its on-demand price."""
    spot_price: str = "aws-p5-h100"
    """Row of the price table that spot slots are billed by, at its spot price."""

    def replayed(self, nodes: int) -> Trace | None:
        """The trace of a run with `nodes` spot nodes: from `start_h` on, with notices and speed as set."""
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
                    "no part of it would be replayed; lower start_h."
                )
            # Slightly longer than the rest of the trace, so that its last events are included.
            trace = trace.window(self.start_h, hours - self.start_h + PUNCTUALITY_S / 3600)
        return trace.compressed(self.speed)

    def billed_by(self, spot: int, fleet: Sequence[SpotGroup] = ()) -> list[tuple[SlotClass, str]]:
        """Rows of the price table for a run with `spot` spot nodes of these groups."""
        rows = [(SlotClass.RESERVED, self.reserved_price)]
        groups = fleet or (SpotGroup(),)
        return rows + [(SlotClass.SPOT, group.price or self.spot_price) for group in groups] if spot else rows
