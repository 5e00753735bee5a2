"""The faults and durations of simulated machines, as methods that the machines call; `NoFaults` injects none.

Storms override them with random faults (`faults.py`), stories with chosen ones (tests/journeys).
"""

from dataclasses import dataclass

from spotlight.compute.profiling.pace import Pace
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass
from spotlight.sim.crash_points import CrashPoint


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """Usual durations, in seconds."""

    step_s: float = 0.4
    start_s: float = 2.0
    load_s: float = 0.2
    train_s: float = 2.0
    score_s: float = 0.3
    heartbeat_s: float = 1.0
    latency_s: float = 0.01
    return_s: float = 3.0
    """Time until a wanted node comes back."""
    restart_s: float = 0.5
    """Time until an agent starts the next worker on a slot."""


class NoFaults:
    """No fault, and equal durations for all workers."""

    never_faults = False
    """True if no method ever reports a fault, so that machines may skip the calls."""

    def __init__(self, tempo: Tempo | None = None) -> None:
        self.tempo = tempo or Tempo()

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        tempo = self.tempo
        return Pace(tempo.step_s, tempo.start_s, tempo.load_s, tempo.train_s, tempo.heartbeat_s)

    def kind(self, worker: WorkerId) -> str:
        """The kind of the worker's GPU."""
        return ""

    def latency_s(self, node: NodeId) -> float:
        """Latency of the next message on this node's connection; messages stay in order."""
        return self.tempo.latency_s

    def is_far(self, node: NodeId) -> bool:
        """Whether this spot node is on another machine than the run's folder."""
        return False

    def store_s(self, node: NodeId) -> float:
        """Seconds until the reserved node's store has answered this spot node."""
        return 2 * self.tempo.latency_s

    def fetch_s(self, node: NodeId) -> float:
        """Seconds until the node has copied announced weights to its store, beside the workers' `load_s`."""
        return 0.0

    def score_s(self, request: Request, node: NodeId) -> float:
        """Seconds until the node's judges have scored the sample."""
        return self.tempo.score_s

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        """Whether the worker dies at this point."""
        return False

    def fails(self, request: Request, attempt: int) -> bool:
        """Whether the model raises."""
        return False

    def is_unscorable(self, request: Request) -> bool:
        """Whether the judge finds no reward; depends on the sample's identity, so that it is the same in every run."""
        return False

    def late_result_delay(self, worker: WorkerId) -> float | None:
        """Seconds after which a handed-back attempt still sends a result; None: never."""
        return None

    def copied(self, digest: str, node: NodeId) -> str:
        """The digest of a copy of weights on this node; raises EnvironmentProblem if it cannot be made."""
        return digest

    def misread(self, digest: str, worker: WorkerId) -> str:
        """The digest of the weights that a worker actually applied."""
        return digest

    def misused(self, digest: str, worker: WorkerId) -> str:
        """The digest of the weights that a sample was actually made with."""
        return digest

    def copies(self, message: m.AnyMessage) -> tuple[float, ...]:
        """Delays after which the message arrives again, in seconds."""
        return ()
