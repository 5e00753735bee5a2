"""What the scheduler decides, in the words of its caller: who was given what, and what is asked back."""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Worker
from spotlight.core.types import WorkerId
from spotlight.core.work import Request, RequestId, WeightsId


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One request that a worker was given, and the step that it goes on from."""

    request: Request
    attempt: int
    step: int


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """What one worker was given; all of it uses one set of weights."""

    worker: WorkerId
    weights: WeightsId
    leases: tuple[Lease, ...]


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """What a worker is to hand back at its next step boundary."""

    worker: WorkerId
    requests: tuple[RequestId, ...]


def assignments_of(worker: Worker, taken: Sequence[Ticket]) -> list[Assignment]:
    """One for each set of weights."""
    if len(taken) == 1:
        ticket = taken[0]
        lease = Lease(ticket.request, ticket.attempt, ticket.step)
        return [Assignment(worker.id, ticket.backlog.weights, (lease,))]
    return [
        Assignment(
            worker.id,
            backlog.weights,
            tuple(Lease(ticket.request, ticket.attempt, ticket.step) for ticket in tickets),
        )
        for backlog, tickets in groupby(taken, key=lambda ticket: ticket.backlog)
    ]
