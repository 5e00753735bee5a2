"""Groups of simulated workers: where they meet, and what a death does to those who wait for the dead.

    open -> members connect -> [together, compute, together, ...] -> broken: a member left or died, or it was closed

Like gloo over sockets: whoever waits in a broken room learns it at once, nobody comes back into it, and an exchange
that all have come to is complete for each of them, even where somebody leaves right after it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import WorkerId


class RoomBroken(Exception):
    """The group is no more."""


class Exchange(StrEnum):
    """Where the members of a forward wait for one another; a real one has many more in between."""

    INPUTS = "inputs"
    OUTPUT = "output"


@dataclass
class _SimRoom:
    connected: set[WorkerId] = field(default_factory=set)
    arrived: dict[tuple[int, Exchange], set[WorkerId]] = field(default_factory=dict)
    """Who has come to an exchange, by the number of its forward."""
    is_broken: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Rooms:
    """One node's; stands for its group store and for the sockets between its workers."""

    def __init__(self) -> None:
        self._rooms: dict[GroupToken, _SimRoom] = {}

    def open(self, token: GroupToken) -> None:
        self._rooms[token] = _SimRoom()

    def close(self, token: GroupToken) -> None:
        self._break(token)
        self._rooms.pop(token, None)

    def left(self, worker: WorkerId) -> None:
        """It dropped its group, or died: whoever is with it notices."""
        for token in [token for token, room in self._rooms.items() if worker in room.connected]:
            self._break(token)

    async def connect(self, token: GroupToken, worker: WorkerId, members: tuple[WorkerId, ...], bound_s: float) -> None:
        room = self._rooms.get(token)
        if room is None:
            raise RoomBroken("the store refuses the token")
        room.connected.add(worker)
        room.change()
        await self._until(room, lambda: room.connected >= set(members), bound_s)

    async def together(
        self,
        token: GroupToken,
        worker: WorkerId,
        members: tuple[WorkerId, ...],
        number: int,
        exchange: Exchange,
        bound_s: float,
    ) -> None:
        """Until all members have come to this exchange of this forward."""
        room = self._rooms.get(token)
        if room is None:
            raise RoomBroken("the group is closed")
        arrived = room.arrived.setdefault((number, exchange), set())
        arrived.add(worker)
        room.change()
        await self._until(room, lambda: arrived >= set(members), bound_s)

    async def compute(self, token: GroupToken, seconds: float) -> None:
        """One's part of a forward; its exchanges show at once that somebody is gone."""
        room = self._rooms.get(token)
        if room is not None and not room.is_broken:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not room.is_broken:
                        await room.changed.wait()
        if room is None or room.is_broken:
            raise RoomBroken("a member is gone")

    async def _until(self, room: _SimRoom, done: Callable[[], bool], bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                while not done() and not room.is_broken:
                    await room.changed.wait()
        except TimeoutError:
            raise RoomBroken(f"not all came within {bound_s:g} s") from None
        if not done():
            raise RoomBroken("a member is gone")

    def _break(self, token: GroupToken) -> None:
        room = self._rooms.get(token)
        if room is not None:
            room.is_broken = True
            room.change()
