"""The audit of a run that may still live: bounds from its settings, and checks that follow its journal."""

from pathlib import Path
from typing import Any

from spotlight.control.ledger.audit import Auditor
from spotlight.control.ledger.findings import Bounds
from spotlight.control.ledger.tally import AuditReport
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.core.journal_tail import JournalTail
from spotlight.core.segments import list_segments

LARGEST_JOURNAL = 512 << 20
"""Bytes; the checks of a longer journal need too much memory beside a page: `spotlight audit` has them."""
RECORDS_AT_ONCE = 20_000


def bounds_of(config: dict[str, Any]) -> Bounds:
    """The bounds that a run's settings promise."""
    # Runs of versions without this section had no overlap.
    pipeline = PipelineConfig.model_validate(config.get("pipeline", {}))
    return Bounds.promised(pipeline, config["cluster"]["commit_every"], bool(config["deterministic"]))


class AuditFollower:
    """Checks a journal in pieces; `report` is the newest verdict on all records that were written by then."""

    def __init__(self, journal: Path, bounds: Bounds) -> None:
        self._tail = JournalTail(journal)
        self._auditor = Auditor(bounds)
        self.report: AuditReport | None = None
        self.reported_seq = -1
        size = sum(path.stat().st_size for path in list_segments(journal))
        self._is_off = size > LARGEST_JOURNAL

    @property
    def seq(self) -> int:
        """Number of the last checked record."""
        return self._tail.seq

    def advance(self) -> bool:
        """Check some records; True if more are there."""
        if self._is_off:
            return False
        records = self._tail.advance(RECORDS_AT_ONCE)
        for record in records:
            self._auditor.check(record)
        return len(records) == RECORDS_AT_ONCE

    def settle(self) -> None:
        """Make the report of all records so far."""
        if not self._is_off and self.reported_seq != self.seq:
            self.report, self.reported_seq = self._auditor.report(), self.seq
