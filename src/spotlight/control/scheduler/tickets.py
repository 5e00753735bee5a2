"""A request's place with the scheduler: waiting in a queue, or held by a worker.

Invariant: a ticket is in exactly one of the two places from `add` until its request is accepted or dropped, so nothing
is lost and nothing is served twice (tests/property/test_scheduler_property.py).

    add --> QUEUED --lease--> HELD --done--> (gone)
              ^                |
              `--- requeue ----'     handed back, recalled, lost: first in line, from its last committed step;
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from spotlight.core.work import Request, RequestId, Work

if TYPE_CHECKING:
    from spotlight.control.scheduler.backlog import Backlog
    from spotlight.control.scheduler.workers import Worker

PREVIEW = Work.PREVIEW
Key: TypeAlias = tuple[bool, int, int, int]


@dataclass(slots=True, eq=False)
class Ticket:
    """One request that is not finished yet."""

    request: Request
    id: RequestId
    backlog: "Backlog"
    place: int
    """Order of arrival: requests of a group are added in their order."""
    rank: int
    """Of the queue that it waits in."""
    turn: int
    """Of its group within the iteration."""
    steps: int
    remaining: int
    """Row-steps until it is finished; the last bit of work counts as a step too. Changed by `reach` alone."""
    step: int = 0
    """The last committed one: where the next attempt goes on."""
    reached: int = 0
    """How far the live attempt is known to be."""
    moved_at: float = 0.0
    """When `reached` last changed."""
    named_at: float = 0.0
    """When its holder last spoke of it; one that is finished there, and still on its way, is not spoken of."""
    holder: "Worker | None" = None
    attempt: int = 0
    is_queued: bool = False
    queued_as: int = 0
    """Its valid entry in the queue."""
    was_returned: bool = False
    is_recalled: bool = False

    def reach(self, step: int) -> None:
        """The live attempt is known to be at this step."""
        left = self.steps - step
        self.reached = step
        self.remaining = left if left > 1 else 1

    @property
    def key(self) -> Key:
        """Order within a class: what came back, then iteration by iteration, group by group as they are needed.

        Previews in the order of issue: they end when training does, and by then every group should have had some.
        """
        request = self.request
        turn = 0 if request.work is PREVIEW else self.turn
        return (not self.was_returned, request.iteration, turn, self.place)
