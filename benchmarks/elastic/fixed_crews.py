"""Slots of simulated nodes that come and go one by one, and three ways to use the remaining ones.

A trace of slots names nodes such as `spot-1/3`: slot 3 of the node `spot-1`. A listener receives each slot's events in
order; a node that loses all slots at one instant is a loss in bulk.

    Elastic     one worker per slot; the node's own crews regroup (node.crews), nothing else is done
    Relaunched  fixed crews, each one worker here: a loss ends the crew, and it restarts on the remaining slots
    Idled       fixed crews as well: a loss ends the crew, and it restarts when all of its slots are back

Relaunched and idled crews do not pay the time that real ones need to connect. Their samples are not lost: the scheduler
continues them from their last commit. Invariant: a fixed crew never works with a slot that is away
(tests/unit/test_sim_slots.py).
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spotlight.control.market.traces import Happening, Trace
from spotlight.core.errors import ConfigError
from spotlight.core.types import WorkerId
from spotlight.sim.sim_world import SimWorld


class CrewSlot(NamedTuple):
    """One slot of a node, over all incarnations of the node and all lives of its worker."""

    node: str
    number: int

    @classmethod
    def named(cls, name: str) -> "CrewSlot":
        node, _, number = name.rpartition("/")
        if not node or not number.isdecimal():
            raise ConfigError(
                f"the trace has the node '{name}', which names no slot; write the node and the slot's number, as in "
                "spot-1/3."
            )
        return cls(node, int(number))

    @classmethod
    def of_worker(cls, worker: WorkerId) -> "CrewSlot":
        """The slot of a worker: that of `spot-1.2/3.4` is slot 3 of `spot-1`."""
        node, _, life = worker.rpartition("/")
        return cls(node.rpartition(".")[0], int(life.partition(".")[0]))


class SlotListener(Protocol):
    """Receives the losses and returns of slots."""

    def lost(self, slot: CrewSlot) -> None: ...

    def back(self, slot: CrewSlot) -> None: ...


async def replay(trace: Trace, listener: SlotListener) -> None:
    """Play the trace from now to its end, without notices; its slots are away until they first come."""
    slots = {name: CrewSlot.named(name) for name in trace.nodes}
    for name in trace.nodes:
        listener.lost(slots[name])
    clock = asyncio.get_running_loop().time
    start = clock()
    for event in trace.events:
        if event.time_s > clock() - start:
            await asyncio.sleep(start + event.time_s - clock())
        if event.event is Happening.UP:
            listener.back(slots[event.node])
        elif event.event is Happening.KILL:
            listener.lost(slots[event.node])


class Elastic:
    """As the product: slots are taken and given, nothing else."""

    def __init__(self, world: SimWorld) -> None:
        self._world = world

    def lost(self, slot: CrewSlot) -> None:
        self._world.take_slot(*slot)

    def back(self, slot: CrewSlot) -> None:
        self._world.give_slot(*slot)


class FixedCrews(ABC):
    """Crews of `size` neighbouring slots; to the world each is one slot of its node, with one worker."""

    def __init__(self, world: SimWorld, size: int, legal: Sequence[int]) -> None:
        self._world = world
        self._size = size
        self._legal = sorted(legal)
        self._present: dict[CrewSlot, set[int]] = {}
        """Slots that are present, by crew."""
        self._used: dict[CrewSlot, tuple[int, ...]] = {}
        """Slots that a crew works with or starts on."""

    def crew_of(self, slot: CrewSlot) -> CrewSlot:
        return CrewSlot(slot.node, slot.number // self._size)

    def degree(self, worker: WorkerId) -> int:
        """Degree of the crew that this worker represents."""
        return len(self._used.get(CrewSlot.of_worker(worker), ())) or self._size

    def slots_used(self) -> list[CrewSlot]:
        """Slots of crews that work or start, in order."""
        return sorted(CrewSlot(crew.node, number) for crew, used in self._used.items() for number in used)

    def lost(self, slot: CrewSlot) -> None:
        crew = self.crew_of(slot)
        present = self._present.setdefault(crew, set(range(crew.number * self._size, (crew.number + 1) * self._size)))
        present.discard(slot.number)
        if crew not in self._used or slot.number in self._used[crew]:
            self._launch(crew)

    def back(self, slot: CrewSlot) -> None:
        crew = self.crew_of(slot)
        self._present[crew].add(slot.number)
        if len(self._usable(self._present[crew])) > len(self._used[crew]):
            self._launch(crew)

    def _launch(self, crew: CrewSlot) -> None:
        """End the crew's worker; start one on the usable slots, if any."""
        self._used[crew] = self._usable(self._present[crew])
        self._world.take_slot(*crew)
        if self._used[crew]:
            self._world.give_slot(*crew)

    @abstractmethod
    def _usable(self, present: set[int]) -> tuple[int, ...]:
        """Slots that a crew starts with when these are present; empty: it does not start."""


class Relaunched(FixedCrews):
    """Restarts at the largest legal degree whenever its degree must fall or can rise."""

    def _usable(self, present: set[int]) -> tuple[int, ...]:
        degree = max((degree for degree in self._legal if degree <= len(present)), default=0)
        return tuple(sorted(present)[:degree])


class Idled(FixedCrews):
    """Waits until the lost member is back."""

    def _usable(self, present: set[int]) -> tuple[int, ...]:
        return tuple(sorted(present)) if len(present) == self._size else ()
