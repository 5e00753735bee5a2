"""The samples in flight on a worker, without tensors: which orders drop one, which step together, when to commit.

Shared by the engine and its simulated stand-in. Invariant (tests/unit/test_engine.py): the most urgent kind of work
steps first, with all samples that can share its forward; a sample is dropped by its own attempt's fence only.
"""

from typing import Generic, Protocol, TypeVar

from spotlight.core.work import Request, RequestId, Work


class BookedRow(Protocol):
    """One sample in flight."""

    @property
    def request(self) -> Request: ...
    @property
    def attempt(self) -> int: ...
    @property
    def bucket(self) -> object:
        """Equal for samples that share a forward."""


Row = TypeVar("Row", bound=BookedRow)


class RowBook(Generic[Row]):
    """Up to `rows` samples in flight, in the order of their admission."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.live: dict[RequestId, Row] = {}

    @property
    def free_rows(self) -> int:
        return self.rows - len(self.live)

    def fence(self, request: RequestId, attempt: int) -> bool:
        """Drop an attempt that is no longer current; True if it was here."""
        row = self.live.get(request)
        if row is None or row.attempt != attempt:
            return False
        del self.live[request]
        return True

    def discard(self, work: Work) -> list[RequestId]:
        """Drop every sample of this kind of work, without its flight."""
        gone = [request for request, row in self.live.items() if row.request.work is work]
        for request in gone:
            del self.live[request]
        return gone

    def next_batch(self) -> tuple[Row, list[Row]]:
        """The most urgent sample, and all that step with it, itself included; there must be one."""
        batch = list(self.live.values())
        if len(batch) == 1:
            return batch[0], batch
        # min returns the first of equals, and rows are in the order of admission.
        first = min(batch, key=_urgency)
        bucket = first.bucket
        return first, [row for row in batch if row.bucket == bucket]


def is_commit_due(commit_every: int, step: int, committed: int) -> bool:
    """Whether a sample at this step is to be committed; never for 0."""
    return 0 < commit_every <= step - committed


def _urgency(row: BookedRow) -> int:
    return row.request.work.rank
