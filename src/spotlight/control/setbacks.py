"""Counts failures per sample and per class of nodes, and applies their limits.

Every limit ends a wait: a sample that always fails is dropped, one that no reward can score is kept without a score,
and nodes that cannot work stop the run (tests/unit/test_dispatch.py, tests/journeys/test_broken_samples.py). Volatile:
a restarted controller counts from 0.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from spotlight.core import messages as m
from spotlight.core.errors import SpotlightError, error_of
from spotlight.core.events import AnyEvent, ProblemNoted, Reconnected
from spotlight.core.types import NodeId
from spotlight.core.work import RequestId, SlotClass, Work

FAILURES_ALLOWED = 3
"""Number of attempts at one sample that raise until it is dropped; more would only hide a broken model."""
SCORINGS_ALLOWED = 2
"""Number of attempts at one sample without a score until it is accepted unscored. The second attempt resumes at the
newest commit, on another node if that pulls first, so it costs a few steps."""
MISUSES_ALLOWED = 8
"""Number of attempts at one sample with the wrong weights until it is dropped. Each one ends its process, and a new
process loads the weights."""
LOSSES_ALLOWED = 20
"""Number of workers that die with one sample, without a commit in between, until it is dropped. No market loses that
many workers: the sample itself ends the process."""
TROUBLES_ALLOWED = {SlotClass.RESERVED: 3, SlotClass.SPOT: 20}
"""Number of failure reports from nodes of a class, without an accepted sample in between, until the run stops."""


PROBLEMS_NOTED = 200
"""Largest number of recorded problems per controller process; later ones are usually repetitions."""


@dataclass(frozen=True)
class Failure:
    """A failure that an attempt, a node or the gang reported."""

    problem: str
    exit_code: int


class Setbacks:
    """Failure counts; owned by the dispatcher."""

    def __init__(self, emit: Callable[[AnyEvent], object]) -> None:
        self._emit = emit
        self._noted_nodes: set[str] = set()
        self.problems: list[str] = []
        """Problems recorded by this controller process."""
        self._failures: Counter[RequestId] = Counter()
        self._unscored: Counter[RequestId] = Counter()
        self._misuses: Counter[RequestId] = Counter()
        self._losses: Counter[RequestId] = Counter()
        self.worn_out: list[RequestId] = []
        """Samples dropped because too many workers died with them."""
        self._troubles: Counter[SlotClass] = Counter()
        self.last: Failure | None = None
        """The newest failure of an attempt."""
        self.unscored_for = ""
        """Problem of the newest attempt without a score."""
        self._awaited: dict[str, dict[NodeId, int]] = {}
        """Pictures that wait for a reward, by the reward and the node."""
        self._outages: Counter[str] = Counter()
        self._outage_problems: dict[str, str] = {}
        """Reason of each reward's newest outage."""

    def note(self, source: str, problem: str) -> None:
        """Record a problem in the journal, for status and report."""
        if len(self.problems) < PROBLEMS_NOTED:
            self.problems.append(problem)
            self._emit(ProblemNoted(source=source, problem=problem))

    def note_once(self, node: NodeId, problem: str) -> None:
        """Record the first problem of a node; all its incarnations report the same one."""
        name = node.rpartition(".")[0]
        if name not in self._noted_nodes:
            self._noted_nodes.add(name)
            self.note(node, problem)

    def node_back(self, node: NodeId, away_s: float) -> None:
        """Record that a node's broken connection was resumed."""
        self._emit(Reconnected(node=node, seconds=away_s))

    def reward_awaited(self, node: NodeId, awaited: m.RewardAwaited) -> None:
        """Count the pictures of a node that wait for a reward; an outage is recorded when its first picture waits.

        Only outages 1, 2, 4, 8 and so on: an endpoint that often fails must not fill the journal.
        """
        nodes = self._awaited.setdefault(awaited.reward, {})
        if awaited.problem:
            self._outage_problems[awaited.reward] = awaited.problem
        if awaited.pictures and not nodes:
            self._outages[awaited.reward] += 1
            number = self._outages[awaited.reward]
            if not number & (number - 1):
                self.note(
                    node,
                    f"the reward '{awaited.reward}' cannot score now (outage {number}: {awaited.problem.rstrip('.')}); "
                    "its pictures wait and are tried again until it can.",
                )
        nodes[node] = awaited.pictures
        self._awaited[awaited.reward] = {each: count for each, count in nodes.items() if count}

    def node_lost(self, node: NodeId) -> None:
        """Forget the pictures that waited there: they are made again elsewhere."""
        for nodes in self._awaited.values():
            nodes.pop(node, None)

    def awaited_rewards(self) -> list[str]:
        """Short descriptions of the outages, for people; empty while every reward scores."""
        return [
            f"the reward '{reward}' to score {sum(nodes.values())} pictures ({self._outage_problems[reward]})"
            for reward, nodes in sorted(self._awaited.items())
            if nodes
        ]

    def failed(self, request: RequestId, failure: Failure) -> str:
        """Count an attempt that raised; return why the sample is given up once that reaches the limit, else ''."""
        self.last = failure
        self._failures[request] += 1
        count = self._failures[request]
        return self._given_up(request, count, FAILURES_ALLOWED, f"failed {count} times, last: {failure.problem}")

    def unscored(self, request: RequestId, problem: str) -> bool:
        """Count an attempt without a score; return True if the sample gets another attempt."""
        self.unscored_for = problem
        self._unscored[request] += 1
        return self._unscored[request] < SCORINGS_ALLOWED

    def misused(self, request: RequestId) -> str:
        """Count an attempt with the wrong weights; return as `failed` does."""
        self._misuses[request] += 1
        count = self._misuses[request]
        return self._given_up(request, count, MISUSES_ALLOWED, f"made {count} times with the wrong weights")

    def lost(self, request: RequestId) -> str:
        """Count a worker that died with the sample; return as `failed` does."""
        self._losses[request] += 1
        count = self._losses[request]
        if count == LOSSES_ALLOWED:
            self.worn_out.append(request)
        return self._given_up(request, count, LOSSES_ALLOWED, f"{count} workers died while making it")

    def _given_up(self, request: RequestId, count: int, limit: int, reason: str) -> str:
        if count < limit:
            return ""
        if request.startswith(f"{Work.PREVIEW}/"):
            # The drop of any other sample is recorded by the ledger, which records no single preview.
            self.note("previews", f"the sample {request} is given up and not ranked: {reason}")
        return reason

    def committed(self, request: RequestId) -> None:
        self._losses.pop(request, None)

    def accepted(self, request: RequestId) -> None:
        """Reset the sample's counts and, since nodes evidently work, the node failures."""
        self._troubles.clear()
        for counts in (self._failures, self._unscored, self._misuses, self._losses):
            counts.pop(request, None)

    def trouble(self, node: NodeId, slot_class: SlotClass, failure: Failure) -> SpotlightError | None:
        """Count a node that cannot work; return the error that ends the run once the limit is reached."""
        self.note(node, failure.problem)
        self._troubles[slot_class] += 1
        count = self._troubles[slot_class]
        if count < TROUBLES_ALLOWED[slot_class]:
            return None
        return error_of(failure.exit_code, f"{slot_class.value} nodes failed {count} times in a row: {failure.problem}")
