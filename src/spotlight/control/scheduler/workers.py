"""What is known of a worker: what it holds, how fast it is, how much it has to do, and whether it will go.

Standing only ever gets worse, and only `lose` ends a worker (tests/unit/test_scheduler_faults.py):

    SERVING --advisory notice--> PREVIEWS_ONLY --imminent notice--> LEAVING
    any of them --drain--> DRAINING
"""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from spotlight.control.scheduler.backlog import Backlog
from spotlight.control.scheduler.speeds import UNMEASURED
from spotlight.control.scheduler.tickets import Ticket
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId, SlotClass


class Standing(StrEnum):
    """Which work a worker may be given."""

    SERVING = "serving"
    PREVIEWS_ONLY = "previews_only"
    """It may go: nothing that others wait for."""
    LEAVING = "leaving"
    """It goes at the deadline: only what finishes before."""
    DRAINING = "draining"
    """Nothing."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker; the scheduler is the only writer."""

    id: WorkerId
    slot_class: SlotClass
    rows: int
    heard_at: float
    backlogs: tuple[Backlog, ...] = ()
    """Of the weights that it holds."""
    speed: float = UNMEASURED
    """Row-steps per second at a full batch: measured, or the median of the others."""
    measured: float | None = None
    free_rows: int = 0
    """Of its standing pull; 0: it does not ask."""
    late_s: float = 0.0
    """Before it could begin with what it asks for."""
    assignments: int = 0
    """How many it was given so far."""
    leases: dict[RequestId, Ticket] = field(default_factory=dict)
    load: int = 0
    """Row-steps that it still has to do."""
    standing: Standing = Standing.SERVING
    deadline: float = inf
    lags: bool = False
    """Whether it may have named an attempt, the last time it did, without having moved it on."""
    counted: bool = False
    """Whether its speed and load are in the balance."""
    refused: Ticket | None = None
    """What it was last refused, because others should have it finished by `promise`."""
    promise: float = inf

    @property
    def room(self) -> int:
        """Rows it may be given: what it asked for, within a limit.

        A result that is being scored is still leased while its row is free again, so a worker may hold up to twice
        its rows; beyond that its pull is out of date.
        """
        limit = 2 * self.rows - len(self.leases)
        return self.free_rows if self.free_rows < limit else limit

    def step_s(self, rows: int, saturating_rows: int) -> float:
        """Seconds of one step of a batch of so many rows."""
        return max(rows, min(saturating_rows, self.rows)) / self.speed

    def finish_s(self, more: int) -> float:
        """Seconds until it has done all it holds and `more` row-steps."""
        return self.late_s + (self.load + more) / self.speed
