"""When nodes at the on-demand price stand in for spot nodes that stay away, and when they are given back.

Every missing spot node has its own patience: it is missing since the count last fell below its place, and once that is
`fallback_s` ago a stand-in is wanted for it. A spot node that comes ends the youngest shortage first, so that a market
that flutters between five and six of eight nodes does not begin to count anew for the seventh and the eighth.

    enough --a spot node is missing--> waiting --for fallback_s--> standing in --spot is there again--> enough
                 ^------------------------|

Count a spot node when its workers can work, not when it is rented: then nobody is given back too early.

Invariant: spot nodes and stand-ins together never exceed what is wanted, nothing is rented before `fallback_s` have
passed without a break, and with spot back at full count everything is given back (tests/unit/test_market_capacity.py).
"""

import math
from collections.abc import Collection
from enum import StrEnum

import msgspec

from spotlight.core.errors import ConfigError

NAME = "stand-in-{}"


def is_stand_in(node: str) -> bool:
    """By its name, or that of one of its incarnations or slots."""
    return node.startswith(NAME.format(""))


class Supply(StrEnum):
    """How a run is off for nodes."""

    ENOUGH = "enough"
    """All spot nodes that are wanted are there."""
    WAITING = "waiting"
    """Some are missing, none for too long."""
    STANDING_IN = "standing_in"
    """Some have been missing for too long."""


class StandInChange(msgspec.Struct, frozen=True):
    """Stand-ins to rent now, and to give back now, by name."""

    rent: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()


class Capacity(msgspec.Struct, kw_only=True):
    """Of one run: tell it how many spot nodes there are whenever that changes, and obey."""

    wanted: int
    """Spot nodes that the run asks for."""
    fallback_s: float | None
    """None: nobody ever stands in."""
    missing_since: list[float] = []
    """One instant per missing node, the longest missing first."""

    def __post_init__(self) -> None:
        if self.wanted < 0 or (self.fallback_s is not None and not 0 <= self.fallback_s < math.inf):
            raise ConfigError(
                f"nobody can stand in for {self.wanted} nodes after {self.fallback_s} s; both must be 0 or more, or "
                "leave market.fallback_s out for no stand-ins."
            )

    def decide(self, spot: int, rented: Collection[str], now: float) -> StandInChange:
        """What to do with so many spot nodes at work and these stand-ins rented."""
        self._observe(spot, now)
        target = self.stand_ins(now)
        numbers = sorted(int(name.rpartition("-")[2]) for name in rented)
        if target <= len(numbers):
            return StandInChange(give_back=tuple(NAME.format(number) for number in reversed(numbers[target:])))
        free = (number for number in range(1, target + 1) if number not in numbers)
        return StandInChange(rent=tuple(NAME.format(number) for number in free)[: target - len(numbers)])

    def stand_ins(self, now: float) -> int:
        """How many are wanted as far as is known."""
        if self.fallback_s is None:
            return 0
        return sum(self._overdue(since, now) for since in self.missing_since)

    def state(self, now: float) -> Supply:
        if not self.missing_since:
            return Supply.ENOUGH
        return Supply.STANDING_IN if self.stand_ins(now) else Supply.WAITING

    def wake_at(self, now: float) -> float | None:
        """When to decide again if nothing happens before; None: not until something does."""
        if self.fallback_s is None:
            return None
        return next((since + self.fallback_s for since in self.missing_since if not self._overdue(since, now)), None)

    def _overdue(self, since: float, now: float) -> bool:
        # Compared as `wake_at` says it, so that rounding never makes a run wake in vain.
        return self.fallback_s is not None and now >= since + self.fallback_s

    def _observe(self, spot: int, now: float) -> None:
        missing = max(0, self.wanted - spot)
        del self.missing_since[missing:]
        self.missing_since += [now] * (missing - len(self.missing_since))
