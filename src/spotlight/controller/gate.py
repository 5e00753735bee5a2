"""Limits on the connections of other machines: how many are open, and how often an address may fail.

A connection is a stranger until it has proved itself by a token. Without I/O; time is an argument.

Invariant (tests/unit/test_gate.py): strangers cannot take the places of nodes, and what is kept about addresses is
bounded.
"""

import ipaddress
from collections import Counter, deque
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GateLimits:
    """Numbers of connections and of failures."""

    total: int = 4096
    """Connections of nodes."""
    per_address: int = 1024
    """Connections of nodes from one address; a cluster may share one."""
    strangers: int = 128
    strangers_per_address: int = 32
    failures: int = 20
    """Failed attempts of an address within `window_s`, after which its connections are closed at once."""
    window_s: float = 10.0
    """Below the grace of nodes, so that a failing machine cannot cost another one at its address its link."""
    noted: int = 20
    """Addresses whose failure is recorded; later ones are only counted."""
    remembered: int = 4096
    """Addresses whose failures are counted."""


class Gate:
    """Counts connections; `admits` comes first, then `proved` or `failed`, and `left` at the end of each."""

    def __init__(self, limits: GateLimits | None = None) -> None:
        self._limits = limits or GateLimits()
        self._nodes: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()
        self._failures: dict[str, deque[float]] = {}
        self._noted: set[str] = set()

    def admits(self, source: str, now: float) -> bool:
        """Count a new connection as a stranger; False if it is to be closed."""
        limits = self._limits
        is_full = self._strangers.total() >= limits.strangers or self._nodes.total() >= limits.total
        crowds = self._strangers[source] >= limits.strangers_per_address or self._nodes[source] >= limits.per_address
        if is_full or crowds or self._recent(source, now) >= limits.failures:
            return False
        self._strangers[source] += 1
        return True

    def proved(self, source: str) -> None:
        """A stranger is one of the run's nodes."""
        _decrease(self._strangers, source)
        self._nodes[source] += 1

    def left(self, source: str, is_proved: bool) -> None:
        _decrease(self._nodes if is_proved else self._strangers, source)

    def failed(self, source: str, now: float) -> bool:
        """Count a failed attempt; True if it is to be recorded."""
        times = self._failures.pop(source, None) or deque(maxlen=self._limits.failures)
        times.append(now)
        # The newest last: the oldest are forgotten first.
        self._failures[source] = times
        if len(self._failures) > self._limits.remembered:
            del self._failures[next(iter(self._failures))]
        is_new = source not in self._noted and len(self._noted) < self._limits.noted
        if is_new:
            self._noted.add(source)
        return is_new

    def _recent(self, source: str, now: float) -> int:
        return sum(now - at < self._limits.window_s for at in self._failures.get(source, ()))


def _decrease(counts: Counter[str], source: str) -> None:
    counts[source] -= 1
    if counts[source] <= 0:
        del counts[source]


def source_of(host: str) -> str:
    """The address that is counted: an IPv6 machine has a whole network of 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
