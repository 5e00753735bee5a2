"""The audit: checks the invariants of a run from its journal alone, in one pass.

The checks are in `sample_checks.py` and `step_checks.py`, the state that they use in `history.py`. `Auditor` checks one
record at a time, so that a test can check after every event; `audit` checks a whole journal.

    report = audit(read(run / "journal"))
    report.clean                 # True
    report.sentences()           # the counts and the findings
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

from spotlight.control.ledger import sample_checks as samples
from spotlight.control.ledger import step_checks as steps
from spotlight.control.ledger.findings import Bounds, CheckContext, Finding, Invariant, Problem
from spotlight.control.ledger.history import History
from spotlight.control.ledger.tally import AuditReport, RecordTally
from spotlight.core.events import (
    Accepted,
    Checkpointed,
    Dropped,
    Issued,
    IterationDone,
    Leased,
    Published,
    Record,
    Released,
    Reopened,
    Restored,
    RunStopped,
    StepCommitted,
    Worked,
)

SomeEvent = TypeVar("SomeEvent")
Rule: TypeAlias = tuple[Invariant, Callable[[CheckContext, SomeEvent], Iterator[Problem]]]
_RULES: dict[type[object], tuple[Rule[Any], ...]] = {}


def _on(event: type[SomeEvent], *rules: Rule[SomeEvent]) -> None:
    _RULES[event] = rules


_on(
    Issued,
    (Invariant.CONSERVATION, samples.issued_once),
    (Invariant.POLICY, samples.no_previews_issued),
    (Invariant.POLICY, steps.versions_within_bound),
    (Invariant.WHOLE_GROUPS, steps.one_version_per_group),
    (Invariant.FRONTIER, steps.positions_issued_once),
)
_on(
    Leased,
    (Invariant.CONSERVATION, samples.known_sample),
    (Invariant.FENCE, samples.one_live_lease),
    (Invariant.EDGES, samples.drawn_edges),
    (Invariant.NOTICE, samples.leased_to_live_worker),
    (Invariant.LIMITS, samples.attempts_within_limit),
)
_on(
    Released,
    (Invariant.CONSERVATION, samples.known_sample),
    (Invariant.FENCE, samples.only_the_live_attempt),
    (Invariant.EDGES, samples.drawn_edges),
    (Invariant.LIMITS, samples.redone_within_limit),
)
_on(
    Accepted,
    (Invariant.CONSERVATION, samples.known_sample),
    (Invariant.FENCE, samples.only_the_live_attempt),
    (Invariant.EDGES, samples.drawn_edges),
    (Invariant.SAME_LATENT, samples.same_latent),
    (Invariant.WEIGHTS, samples.published_weights),
)
_on(
    Dropped,
    (Invariant.CONSERVATION, samples.known_sample),
    (Invariant.CONSERVATION, samples.dropped_for_a_reason),
    (Invariant.EDGES, samples.drawn_edges),
)
_on(Reopened, (Invariant.CONSERVATION, samples.known_sample), (Invariant.EDGES, samples.drawn_edges))
_on(
    StepCommitted,
    (Invariant.CONSERVATION, steps.known_samples),
    (Invariant.TRAINED_ONCE, steps.trained_once),
    (Invariant.TRAINED_ONCE, steps.steps_in_order),
    (Invariant.WHOLE_GROUPS, steps.whole_groups),
    (Invariant.POLICY, steps.only_rollouts_in_the_loss),
    (Invariant.POLICY, steps.policy_lag_within_bound),
    (Invariant.FRONTIER, steps.frontier_is_what_was_trained),
    (Invariant.PROGRESS, steps.steps_keep_coming),
)
_on(Restored, (Invariant.TRAINED_ONCE, steps.steps_are_committed))
_on(Checkpointed, (Invariant.TRAINED_ONCE, steps.steps_are_committed))
_on(
    Published,
    (Invariant.TRAINED_ONCE, steps.steps_are_committed),
    (Invariant.WEIGHTS, steps.published_once),
)
_on(Worked, (Invariant.TIME, samples.time_adds_up))
_on(
    IterationDone,
    (Invariant.POLICY, steps.stale_share_within_bound),
    (Invariant.NOTICE, samples.lost_workers_hold_nothing),
)
_on(
    RunStopped,
    (Invariant.CONSERVATION, samples.nothing_left_to_make),
    (Invariant.TRAINED_ONCE, steps.all_trained),
    (Invariant.NOTICE, samples.lost_workers_hold_nothing),
    (Invariant.PROGRESS, steps.steps_keep_coming),
)


class Auditor:
    """Checks a run's records in order and collects the findings."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self._bounds = bounds or Bounds()
        self._history = History()
        self._tally = RecordTally()
        self._findings: list[Finding] = []

    def check(self, record: Record) -> list[Finding]:
        """Return the findings of this record, given all records before it."""
        found = [Finding(Invariant.SEQUENCE, record.seq, problem) for problem in _sequence(self._history, record)]
        context = CheckContext(self._history, record.at, self._bounds)
        for invariant, rule in _RULES.get(type(record.event), ()):
            found += [Finding(invariant, record.seq, *problem) for problem in rule(context, record.event)]
        self._tally.count(record, self._history)
        self._history.add(record)
        self._findings += found
        return found

    def report(self) -> AuditReport:
        """Report on all records so far."""
        return self._tally.report(self._history, tuple(self._findings))


def audit(records: Iterable[Record], bounds: Bounds | None = None) -> AuditReport:
    """Check a whole journal."""
    auditor = Auditor(bounds)
    for record in records:
        auditor.check(record)
    return auditor.report()


def _sequence(history: History, record: Record) -> Iterator[str]:
    if record.seq != history.next_seq:
        yield f"record {history.next_seq} should come here"
    if record.at < history.at:
        yield f"run time goes back from {history.at:.3f} to {record.at:.3f} s"
