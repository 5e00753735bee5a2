"""Decides when nodes at the on-demand price stand in for missing spot nodes, and when they are returned.

Every missing spot node has its own timer, which starts when the count falls below its number; after `fallback_s` it
gets a stand-in. A spot node that joins stops the youngest timer, so that a market that alternates between five and six
of eight nodes does not restart the timers of the seventh and eighth.

    enough --a spot node is missing--> waiting --for fallback_s--> standing in --spot nodes return--> enough
                 ^------------------------|

Count a spot node when its workers are ready, not when it is rented: then no stand-in is returned too early.

Invariant: spot nodes and stand-ins together never exceed `wanted`, no node is rented before `fallback_s` have passed
without a break, and at the full spot count all stand-ins are returned (tests/unit/test_market_capacity.py).
"""

import math
from collections.abc import Collection
from enum import StrEnum

import msgspec

from spotlight.core.errors import ConfigError

NAME = "stand-in-{}"


def is_stand_in(node: str) -> bool:
    """True for the name of a stand-in, or of one of its incarnations or slots."""
    return node.startswith(NAME.format(""))


class Supply(StrEnum):
    """Supply of spot nodes of a run."""

    ENOUGH = "enough"
    """No spot node is missing."""
    WAITING = "waiting"
    """Spot nodes are missing, none for `fallback_s`."""
    STANDING_IN = "standing_in"
    """At least one spot node has been missing for `fallback_s`."""


class StandInChange(msgspec.Struct, frozen=True):
    """Names of stand-ins to rent and to return now."""

    rent: tuple[str, ...] = ()
    give_back: tuple[str, ...] = ()


class Capacity(msgspec.Struct, kw_only=True):
    """The stand-in policy of one run; call `decide` whenever the number of spot nodes changes, and apply its result."""

    wanted: int
    """Number of spot nodes that the run requests."""
    fallback_s: float | None
    """Seconds until a missing node gets a stand-in; None: never."""
    missing_since: list[float] = []
    """Start time of each missing node's timer, the longest missing first."""

    def __post_init__(self) -> None:
        if self.wanted < 0 or (self.fallback_s is not None and not 0 <= self.fallback_s < math.inf):
            raise ConfigError(
                f"stand-ins for {self.wanted} spot nodes after {self.fallback_s} s are impossible; both must be 0 or "
                "more; leave market.fallback_s out for no stand-ins."
            )

    def decide(self, spot: int, rented: Collection[str], now: float) -> StandInChange:
        """Return the change for `spot` working spot nodes and these rented stand-ins."""
        self._observe(spot, now)
        target = self.stand_ins(now)
        numbers = sorted(int(name.rpartition("-")[2]) for name in rented)
        if target <= len(numbers):
            return StandInChange(give_back=tuple(NAME.format(number) for number in reversed(numbers[target:])))
        free = (number for number in range(1, target + 1) if number not in numbers)
        return StandInChange(rent=tuple(NAME.format(number) for number in free)[: target - len(numbers)])

    def stand_ins(self, now: float) -> int:
        """Number of stand-ins needed at the last observed spot count."""
        if self.fallback_s is None:
            return 0
        return sum(self._overdue(since, now) for since in self.missing_since)

    def state(self, now: float) -> Supply:
        if not self.missing_since:
            return Supply.ENOUGH
        return Supply.STANDING_IN if self.stand_ins(now) else Supply.WAITING

    def wake_at(self, now: float) -> float | None:
        """Time of the next decision if the spot count does not change; None: no decision is due."""
        if self.fallback_s is None:
            return None
        return next((since + self.fallback_s for since in self.missing_since if not self._overdue(since, now)), None)

    def _overdue(self, since: float, now: float) -> bool:
        # Uses the expression of `wake_at`, so that rounding never causes a wake-up without effect.
        return self.fallback_s is not None and now >= since + self.fallback_s

    def _observe(self, spot: int, now: float) -> None:
        missing = max(0, self.wanted - spot)
        del self.missing_since[missing:]
        self.missing_since += [now] * (missing - len(self.missing_since))
