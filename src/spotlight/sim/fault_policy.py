"""What may go wrong, as questions that the simulated machines ask; `NoFaults` answers that nothing does.

A storm answers by chance (`faults.py`), a story by what it wants to tell (tests/journeys). Durations are part of it:
how fast a worker is, and how long a message takes.
"""

from dataclasses import dataclass

from spotlight.compute.profiling.pace import Pace
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass
from spotlight.sim.moments import Moment


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
    """Until a node that is wanted comes back."""
    restart_s: float = 0.5
    """Until an agent starts another worker on a slot."""


class NoFaults:
    """Nothing goes wrong, and everybody is equally fast."""

    is_calm = False
    """Whether that is so by nature: of a fate that may have other answers everybody asks, every time."""

    def __init__(self, tempo: Tempo | None = None) -> None:
        self.tempo = tempo or Tempo()

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        tempo = self.tempo
        return Pace(tempo.step_s, tempo.start_s, tempo.load_s, tempo.train_s, tempo.heartbeat_s)

    def kind(self, worker: WorkerId) -> str:
        """Of the worker's GPU."""
        return ""

    def latency_s(self, node: NodeId) -> float:
        """Of the next message on this node's connection; messages stay in order."""
        return self.tempo.latency_s

    def score_s(self, request: Request, node: NodeId) -> float:
        """Until the node's judges have seen the picture."""
        return self.tempo.score_s

    def should_crash(self, moment: Moment, worker: WorkerId) -> bool:
        """Whether the worker dies at this point."""
        return False

    def fails(self, request: Request, attempt: int) -> bool:
        """Whether the model raises."""
        return False

    def is_unscorable(self, request: Request) -> bool:
        """Whether the judge finds no reward: by identity, so that every run has the same ones."""
        return False

    def late_result_delay(self, worker: WorkerId) -> float | None:
        """Seconds after which a result comes of an attempt that was handed back; None: never."""
        return None

    def misread(self, digest: str, worker: WorkerId) -> str:
        """The digest of the weights that a worker really applied."""
        return digest

    def misused(self, digest: str, worker: WorkerId) -> str:
        """The digest of the weights that a sample was really made with."""
        return digest

    def copies(self, message: m.AnyMessage) -> tuple[float, ...]:
        """Seconds after which the message arrives once more."""
        return ()
