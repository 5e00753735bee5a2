"""Progress of a run: a fold of its journal, updated by every new event.

Resume needs this fold and the ledger's only. Invariant: applying the journal's events to an empty state gives the
state of the live run (tests/storm checks it after every restart).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from spotlight.control.advantage import LaggedStd
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Checkpointed,
    Compared,
    Evaluated,
    Fidelity,
    Holding,
    IterationDone,
    Leased,
    Previewed,
    Published,
    RunResumed,
    RunStarted,
    RunStopped,
    Selected,
    Worked,
)
from spotlight.core.work import WeightsId


@dataclass
class RunState:
    """Results of the run so far; the loop skips work that is already here."""

    started: RunStarted | None = None
    attempts: int = 0
    iterations_done: int = 0
    lagged: LaggedStd = field(default_factory=LaggedStd)
    """The lagged std for the next iteration's advantages."""
    lagged_terms: dict[str, LaggedStd] = field(default_factory=dict)
    """The same for each of several rewards."""
    compared: dict[int, Compared] = field(default_factory=dict)
    selected: dict[int, Selected] = field(default_factory=dict)
    previewed: dict[int, list[Previewed]] = field(default_factory=dict)
    fidelity: dict[int, Fidelity] = field(default_factory=dict)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    published: dict[WeightsId, Published] = field(default_factory=dict)
    checkpoints: list[Checkpointed] = field(default_factory=list)
    longest_iteration_s: float = 0.0
    finished: bool = False

    @classmethod
    def replay(cls, events: Iterable[AnyEvent]) -> "RunState":
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Leased() | Accepted() | Worked() | Holding():
                # Nearly all of a journal; the loop needs none of these.
                pass
            case RunStarted():
                self.started = event
                self.attempts = 1
            case RunResumed():
                self.attempts = event.attempt
                self.finished = False
            case RunStopped():
                self.finished = event.finished
            case Compared():
                self.compared[event.iteration] = event
                self.lagged = self.lagged.updated([np.array(group) for group in event.rewards])
                for name, groups in event.terms.items():
                    before = self.lagged_terms.get(name, LaggedStd())
                    self.lagged_terms[name] = before.updated([np.array(group) for group in groups])
            case Selected():
                self.selected[event.iteration] = event
            case Previewed():
                self.previewed.setdefault(event.iteration, []).append(event)
            case Fidelity():
                self.fidelity[event.iteration] = event
            case Evaluated():
                self.evaluated[event.iteration] = event
            case Published():
                self.published[event.weights] = event
            case Checkpointed():
                self.checkpoints.append(event)
            case IterationDone():
                self.iterations_done = event.iteration + 1
                self.longest_iteration_s = max(self.longest_iteration_s, event.rollout_s + event.train_s)
                self._forget_before(event.iteration)
            case _:
                pass

    @property
    def checkpoint(self) -> Checkpointed | None:
        """The newest durable checkpoint; None: the initial state."""
        return self.checkpoints[-1] if self.checkpoints else None

    def _forget_before(self, iteration: int) -> None:
        """Bound the memory: older iterations are not needed again."""
        for by_iteration in (self.selected, self.previewed, self.fidelity):
            for old in [known for known in by_iteration if known < iteration]:
                del by_iteration[old]
