"""A machine as it is requested from a pool, and as the controller sees it."""

from enum import StrEnum

import msgspec

from spotlight.core.errors import ConfigError
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A requested machine; `name` is the same for all its incarnations."""

    name: str
    slot_class: SlotClass
    slots: int = 1
    zone: str = ""
    kind: str = ""
    """Kind of its GPUs where they are simulated; real workers report the kind of theirs."""
    speed: float = 1.0
    """Speed of a slot relative to the profile, in simulations and paced runs."""
    price: str = ""
    """Row of the price table that it is billed by."""
    rows: int | None = 8
    """Samples that each worker holds at a time; None: each worker measures the best number for its device."""
    trains: int = 0
    """Slots, from the first one, whose workers can also take the training role."""
    boot_s: float = 0.0
    """Boot time in seconds: the node is billed, but no worker starts."""

    @property
    def fixed_rows(self) -> int:
        """Number of rows; raises ConfigError if it must be measured, which a simulation cannot do."""
        if self.rows is None:
            raise ConfigError(
                f"node {self.name} has no fixed number of rows, and a simulation cannot measure one; set cluster.rows "
                "to a number."
            )
        return self.rows

    def incarnation(self, number: int) -> NodeId:
        return NodeId(f"{self.name}.{number}")


class NodeState(StrEnum):
    """States of a node's link."""

    JOINING = "joining"
    """Its machine has joined, and its agent has not connected yet."""
    CONNECTED = "connected"
    AWAY = "away"
    """Its connection is broken; it can return within its grace."""


class NodeStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the run has."""

    node: NodeId
    place: str
    """Address that it connects from; empty: the run's machine."""
    slot_class: SlotClass
    slots: int
    zone: str
    state: NodeState
