"""What storms have tried: counts over seeds, and which faults and edges none of them met."""

from collections import Counter
from dataclasses import dataclass, field

from spotlight.control.ledger.states import EDGES, SampleState
from spotlight.sim.faults import KINDS
from spotlight.sim.invariants import Edge

UNUSED: frozenset[Edge] = frozenset({(SampleState.ACCEPTED, SampleState.DROPPED)})
"""Drawn, but nothing in the product gives up a sample that it has."""


@dataclass
class Outcome:
    """What one seed was."""

    seed: int
    events: int
    seconds: float
    """Of virtual time."""
    restarts: int
    crews: int
    theta: str
    trace: str
    """Hash of everything that happened."""
    fired: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)


@dataclass
class Tally:
    """The sum of outcomes."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    restarts: int = 0
    crews: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.seconds += outcome.seconds
        self.restarts += outcome.restarts
        self.crews += outcome.crews
        self.fired += outcome.fired
        self.edges += outcome.edges

    def untried(self) -> list[str]:
        """Kinds of faults that never struck, and edges that no sample took."""
        drawn = [(start, end) for start, ends in EDGES.items() for end in sorted(ends)]
        edges = [f"{start.value} -> {end.value}" for start, end in drawn if not self._took(start, end)]
        return [kind.value for kind in KINDS if not self.fired[kind]] + edges

    def sentences(self) -> list[str]:
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.fired.items()))
        edges = ", ".join(f"{a.value} -> {b.value}: {count}" for (a, b), count in sorted(self.edges.items()))
        return [
            f"{self.seeds} seeds held: {self.events} events in {self.seconds / 3600:.1f} virtual hours, the controller "
            f"came back {self.restarts} times, nodes told of {self.crews} crews.",
            f"Faults: {faults}.",
            f"Edges: {edges}.",
        ]

    def _took(self, start: SampleState, end: SampleState) -> bool:
        return bool(self.edges[start, end]) or (start, end) in UNUSED
