"""A machine as it is requested from a pool."""

import msgspec

from spotlight.core.errors import ConfigError
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as it is asked for; `name` stays the same over all its incarnations."""

    name: str
    slot_class: SlotClass
    slots: int = 1
    zone: str = ""
    price: str = ""
    """Row of the price table that it is billed by."""
    rows: int | None = 8
    """Samples that each of its workers takes at a time; None: as many as it finds to suit its device."""
    trains: bool = False
    """Whether its workers can also take the training role."""
    boot_s: float = 0.0
    """Seconds after its coming in which no worker starts: it is paid for, but its machine still boots."""

    @property
    def fixed_rows(self) -> int:
        """Where nothing is computed, nothing can be measured."""
        if self.rows is None:
            raise ConfigError(
                f"the rows of the node {self.name} are to be measured, but nothing is computed here; set cluster.rows "
                "to a number."
            )
        return self.rows

    def incarnation(self, number: int) -> NodeId:
        return NodeId(f"{self.name}.{number}")
