"""Counts what goes wrong over each sample and on each class of nodes, and says when it has gone wrong too often.

Every limit ends a wait: a sample that always fails is dropped, one that no reward can score is kept without a score,
and nodes that cannot work stop the run (tests/unit/test_dispatch.py, tests/journeys/test_broken_samples.py). Volatile:
a controller that restarts counts anew.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from spotlight.core.errors import SpotlightError, error_of
from spotlight.core.events import AnyEvent, ProblemNoted
from spotlight.core.types import NodeId
from spotlight.core.work import RequestId, SlotClass

FAILURES_ALLOWED = 3
"""Attempts at one sample that may raise before it is dropped: more would only hide a broken model."""
SCORINGS_ALLOWED = 2
"""Attempts at one sample that may end without a score before it is kept unscored; the second resumes at the newest
commit, on another node if that pulls first, so it costs a few steps."""
MISUSES_ALLOWED = 8
"""Attempts at one sample that may be made with other weights than asked for: each ends its process, so that another one
loads the weights anew."""
LOSSES_ALLOWED = 20
"""Workers that may die over one sample without a commit in between: beyond any market, it is the sample that kills."""
TROUBLES_ALLOWED = {SlotClass.RESERVED: 3, SlotClass.SPOT: 20}
"""Reports of nodes of a class, in a row and without an accepted sample in between, that they cannot work."""


PROBLEMS_NOTED = 200
"""Per life of the controller: what goes wrong more often goes wrong in the same way."""


@dataclass(frozen=True)
class Failure:
    """What an attempt, a node or the gang reported."""

    problem: str
    exit_code: int


class Setbacks:
    """Owned by the dispatcher."""

    def __init__(self, emit: Callable[[AnyEvent], object]) -> None:
        self._emit = emit
        self._remarked: set[str] = set()
        self.problems: list[str] = []
        """What was noted in this life of the controller."""
        self._failures: Counter[RequestId] = Counter()
        self._unscored: Counter[RequestId] = Counter()
        self._misuses: Counter[RequestId] = Counter()
        self._losses: Counter[RequestId] = Counter()
        self._troubles: Counter[SlotClass] = Counter()
        self.last: Failure | None = None
        """The newest failure of an attempt."""
        self.unscored_for = ""
        """Why the newest attempt without a score has none."""

    def note(self, source: str, problem: str) -> None:
        """Into the journal, where status and report find it."""
        if len(self.problems) < PROBLEMS_NOTED:
            self.problems.append(problem)
            self._emit(ProblemNoted(source=source, problem=problem))

    def note_once(self, node: NodeId, problem: str) -> None:
        """The first remark of a node, over all its incarnations: each of them would make the same."""
        name = node.rpartition(".")[0]
        if name not in self._remarked:
            self._remarked.add(name)
            self.note(node, problem)

    def failed(self, request: RequestId, failure: Failure) -> int:
        """Attempts at the sample that raised so far; 0 while it may be tried again."""
        self.last = failure
        self._failures[request] += 1
        return self._failures[request] if self._failures[request] >= FAILURES_ALLOWED else 0

    def unscored(self, request: RequestId, problem: str) -> bool:
        """An attempt ended without a score; whether the sample is to be scored again."""
        self.unscored_for = problem
        self._unscored[request] += 1
        return self._unscored[request] < SCORINGS_ALLOWED

    def misused(self, request: RequestId) -> int:
        """Attempts at the sample that used other weights than asked for so far; 0 while it may be tried again."""
        self._misuses[request] += 1
        return self._misuses[request] if self._misuses[request] >= MISUSES_ALLOWED else 0

    def lost(self, request: RequestId) -> int:
        """Workers that died over the sample so far; 0 while another may try."""
        self._losses[request] += 1
        return self._losses[request] if self._losses[request] >= LOSSES_ALLOWED else 0

    def committed(self, request: RequestId) -> None:
        self._losses.pop(request, None)

    def accepted(self, request: RequestId) -> None:
        """The sample is made, so nodes can work."""
        self._troubles.clear()
        for counts in (self._failures, self._unscored, self._misuses, self._losses):
            counts.pop(request, None)

    def trouble(self, node: NodeId, slot_class: SlotClass, failure: Failure) -> SpotlightError | None:
        """A node cannot work. Others may; the error that ends the run once that has happened too often."""
        self.note(node, failure.problem)
        self._troubles[slot_class] += 1
        count = self._troubles[slot_class]
        if count < TROUBLES_ALLOWED[slot_class]:
            return None
        return error_of(
            failure.exit_code, f"{slot_class.value} nodes cannot work, {count} times in a row: {failure.problem}"
        )
