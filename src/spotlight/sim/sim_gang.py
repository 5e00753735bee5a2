"""Connections of simulated training ranks: stands for rank 0's store and the sockets between the ranks.

    open --every rank connects--> connected --exchange--> connected ...
      `------------- a rank leaves or dies, or one never connects -------------> broken

As with real ranks: an exchange that all ranks reached is complete for each of them, even if one dies right after it; a
wait in a broken gang fails at once, and a broken gang is never used again.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

from spotlight.core.errors import RankLost

CONNECT_S = 20.0
"""Longest wait for the other ranks to connect."""


def rank_lost() -> RankLost:
    return RankLost("another rank is gone")


@dataclass(eq=False)
class SimGang:
    """One gang."""

    ranks: int
    nonce: str
    """Rank 0's stand-in for the last bits of the weights, which all ranks share."""
    states: dict[int, object] = field(default_factory=dict)
    """State of each rank that entered the exchange, for those that receive it."""
    is_broken: bool = False
    written: dict[str, set[int]] = field(default_factory=dict)
    """Ranks that have written their part of a checkpoint, by its path."""
    _waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)

    async def exchange(self, rank: int, limit_s: float | None = None) -> None:
        """Return when every rank is here; raise RankLost if one cannot come any more."""
        if self.is_broken:
            raise rank_lost()
        arrived = self._waiting[rank] = asyncio.get_running_loop().create_future()
        if len(self._waiting) == self.ranks:
            waiting, self._waiting = self._waiting, {}
            for each in waiting.values():
                each.set_result(None)
        try:
            async with asyncio.timeout(limit_s):
                await arrived
        except TimeoutError:
            self.leave()
            raise rank_lost() from None

    def wrote(self, path: str, rank: int) -> None:
        self.written.setdefault(path, set()).add(rank)

    def is_whole(self, path: str) -> bool:
        return len(self.written.get(path, ())) == self.ranks

    def leave(self) -> None:
        """Break the gang: every rank that waits fails."""
        self.is_broken = True
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                with contextlib.suppress(asyncio.InvalidStateError):
                    each.set_exception(rank_lost())


class SimGangs:
    """The gangs of a run, by the name of rank 0's store."""

    def __init__(self) -> None:
        self._open: dict[str, SimGang] = {}

    def open(self, epoch: int, ranks: int, nonce: str) -> str:
        store = f"{len(self._open)}:{epoch}"
        self._open[store] = SimGang(ranks, nonce)
        return store

    def at(self, store: str) -> SimGang:
        if store not in self._open:
            raise rank_lost()
        return self._open[store]
