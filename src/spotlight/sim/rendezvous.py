"""Rendezvous of simulated crew members: stands for a node's group store and the sockets between its workers.

    open -> members connect -> [wait_at, compute, wait_at, ...] -> broken: a member left or died, or it was closed

Like gloo over sockets: a wait in a broken group fails at once, a broken group takes no member back, and an exchange
that all members reached is complete for each of them, even if one leaves right after it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import WorkerId


class GroupBroken(Exception):
    """The group is broken or closed."""


class Exchange(StrEnum):
    """Where the members of a forward wait for one another; a real forward has many more exchanges."""

    INPUTS = "inputs"
    OUTPUT = "output"


@dataclass
class _SimGroup:
    connected: set[WorkerId] = field(default_factory=set)
    arrived: dict[tuple[int, Exchange], set[WorkerId]] = field(default_factory=dict)
    """Members that reached an exchange, by the number of its forward."""
    is_broken: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class SimRendezvous:
    """The groups of one node."""

    def __init__(self) -> None:
        self._groups: dict[GroupToken, _SimGroup] = {}

    def open(self, token: GroupToken) -> None:
        self._groups[token] = _SimGroup()

    def close(self, token: GroupToken) -> None:
        self._break(token)
        self._groups.pop(token, None)

    def leave(self, worker: WorkerId) -> None:
        """Break the groups of a worker that left or died."""
        for token in [token for token, group in self._groups.items() if worker in group.connected]:
            self._break(token)

    async def connect(self, token: GroupToken, worker: WorkerId, members: tuple[WorkerId, ...], bound_s: float) -> None:
        group = self._groups.get(token)
        if group is None:
            raise GroupBroken("the store refuses the token")
        group.connected.add(worker)
        group.change()
        await self._until(group, lambda: group.connected >= set(members), bound_s)

    async def wait_at(
        self,
        token: GroupToken,
        worker: WorkerId,
        members: tuple[WorkerId, ...],
        number: int,
        exchange: Exchange,
        bound_s: float,
    ) -> None:
        """Wait until all members have reached this exchange of this forward."""
        group = self._groups.get(token)
        if group is None:
            raise GroupBroken("the group is closed")
        arrived = group.arrived.setdefault((number, exchange), set())
        arrived.add(worker)
        group.change()
        await self._until(group, lambda: arrived >= set(members), bound_s)

    async def compute(self, token: GroupToken, seconds: float) -> None:
        """Spend one member's part of a forward; fails at once when a member is gone."""
        group = self._groups.get(token)
        if group is not None and not group.is_broken:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not group.is_broken:
                        await group.changed.wait()
        if group is None or group.is_broken:
            raise GroupBroken("a member is gone")

    async def _until(self, group: _SimGroup, done: Callable[[], bool], bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                while not done() and not group.is_broken:
                    await group.changed.wait()
        except TimeoutError:
            raise GroupBroken(f"not all members arrived within {bound_s:g} s") from None
        if not done():
            raise GroupBroken("a member is gone")

    def _break(self, token: GroupToken) -> None:
        group = self._groups.get(token)
        if group is not None:
            group.is_broken = True
            group.change()
