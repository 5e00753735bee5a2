"""Which nodes of a Ray cluster are machines of the run, under which names, and when their actors start.

    UNSEEN --marked--> DUE --start--> RUNNING --left in order--> LEFT --node dies--> UNSEEN
                                         |--failed--> WAITING --pause over--> DUE
                                         `--node died--> UNSEEN

Decisions only: `pools/ray_driver.py` talks to Ray.

Invariants (tests/unit/test_ray_membership.py): at most one actor runs on a node; two living nodes never share a name; a
node that returns under its name gets the name of its predecessor; a draining node gets no actor.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from typing import NamedTuple

from spotlight.core.work import SlotClass
from spotlight.pools.local import STABLE_S
from spotlight.pools.ray_lines import ConnectRay, Draining, RayNode

ZONE_LABEL = "ray.io/availability-zone"
PREFIX = "ray-"
"""Begins the names of the run's Ray nodes; no other machine has such a name."""
NAME_MOST = 36
PAUSE_S = 1.0
"""Pause before the second start on a node; each further one is twice as long."""
LONGEST_PAUSE_S = 60.0
UNDATED_S = 30.0
"""Seconds that a drain without a deadline leaves."""
LONGEST_S = 120.0
"""Most seconds that a drain leaves, as the longest notice of a cloud: the clock that set its deadline may be wrong."""


class EndKind(StrEnum):
    """Why an actor ended."""

    LEFT = "left"
    """Its machine left in order."""
    STOPPED = "stopped"
    """The run could not be reached, or was ending."""
    FAILED = "failed"
    """Its machine could not join or go on."""
    PREEMPTED = "preempted"
    """Its node was drained and is gone."""
    NODE_LOST = "node lost"
    """Its node died without a drain."""
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    """Its process died, and the node lives."""


class Start(NamedTuple):
    """An actor to be started."""

    id: str
    name: str
    slot_class: SlotClass
    slots: int
    cpus: float
    gpus: int
    zone: str


@dataclass(eq=False)
class _Place:
    node: RayNode
    name: str
    slot_class: SlotClass
    due: float
    """Time of the next start; infinite: none."""
    started: float | None = None
    """None: no actor runs."""
    failures: int = 0
    is_announced: bool = False
    """A drain was reported."""


def slot_class_of(node: RayNode, connect: ConnectRay) -> SlotClass | None:
    """None: the run does not use the node."""
    if any(_has(node, mark) for mark in connect.spot):
        return SlotClass.SPOT
    return SlotClass.RESERVED if any(_has(node, mark) for mark in connect.reserved) else None


def gpus_of(node: RayNode) -> int:
    return int(node.resources.get("GPU", 0))


def _has(node: RayNode, mark: str) -> bool:
    key, is_label, value = mark.partition("=")
    return node.labels.get(key) == value if is_label else node.resources.get(mark, 0) > 0


class RayMembership:
    """Places of machines in a Ray cluster."""

    def __init__(self, connect: ConnectRay) -> None:
        self._connect = connect
        self._places: dict[str, _Place] = {}
        self._unusable: set[str] = set()

    def look(self, nodes: Iterable[RayNode], draining: Mapping[str, int], now: float) -> list[Start]:
        """Compare with Ray's table; returns the actors to be started."""
        alive = {node.id: node for node in nodes if node.is_alive}
        for key, place in list(self._places.items()):
            if key not in alive and place.started is None:
                del self._places[key]
        for key, node in alive.items():
            if key not in self._places and key not in draining and self._is_usable(node):
                slot_class = slot_class_of(node, self._connect)
                assert slot_class is not None
                self._places[key] = _Place(node, self._free_name(node), slot_class, now)
        due = [each for each in self._places.values() if each.started is None and each.due <= now]
        return [self._start(place, now) for place in due if place.node.id in alive and place.node.id not in draining]

    def unusable(self) -> list[str]:
        """Names of marked nodes that have no GPU, which the run needs."""
        return sorted(self._unusable)

    def draining(self, draining: Mapping[str, int], wall: float) -> list[Draining]:
        """Notices for machines whose nodes drain; deadlines are milliseconds since 1970, 0: none."""
        found = []
        for key, deadline_ms in draining.items():
            place = self._places.get(key)
            if place is not None and place.started is not None:
                place.is_announced = True
                seconds = min(max(0.0, deadline_ms / 1000 - wall), LONGEST_S) if deadline_ms else UNDATED_S
                found.append(Draining(name=place.name, seconds=seconds))
        return found

    def was_drained(self, key: str) -> bool:
        return self._places[key].is_announced

    def name_of(self, key: str) -> str:
        return self._places[key].name

    def ended(self, key: str, kind: EndKind, now: float) -> int:
        """The actor on this node is gone; returns the failures in a row, after each of which it starts again."""
        place = self._places[key]
        assert place.started is not None
        ran_s, place.started = now - place.started, None
        if kind is EndKind.LEFT:
            place.due = math.inf
            return 0
        place.failures = place.failures + 1 if ran_s <= STABLE_S else 1
        place.due = now + min(PAUSE_S * 2 ** (place.failures - 1), LONGEST_PAUSE_S)
        return place.failures

    def _is_usable(self, node: RayNode) -> bool:
        if slot_class_of(node, self._connect) is None:
            return False
        if self._connect.uses_gpus and not gpus_of(node):
            self._unusable.add(node.name)
            return False
        return True

    def _start(self, place: _Place, now: float) -> Start:
        place.started, connect, node = now, self._connect, place.node
        gpus = gpus_of(node) if connect.uses_gpus else 0
        slots = gpus or connect.slots
        # Ray may remove a node that no actor holds resources of.
        cpus = 0.0 if gpus else min(float(slots * connect.threads), node.resources.get("CPU", 0.0))
        zone = node.labels.get(ZONE_LABEL, "")
        return Start(node.id, place.name, place.slot_class, slots, cpus, gpus, zone)

    def _free_name(self, node: RayNode) -> str:
        """The name that Ray has for the node, numbered if another living node has it too."""
        slug = re.sub(r"[^a-z0-9]+", "-", node.name.lower())[:NAME_MOST].strip("-") or "node"
        taken = {place.name for place in self._places.values()}
        numbered = (f"{PREFIX}{slug[: NAME_MOST - 5]}-{number}" for number in count(2))
        return next(name for name in chain([f"{PREFIX}{slug}"], numbered) if name not in taken)
