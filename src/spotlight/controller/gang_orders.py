"""One order to the gang and the replies of its ranks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from spotlight.core import messages as m
from spotlight.core.types import WorkerId

GangOrder: TypeAlias = m.FormGang | m.Train | m.Publish | m.Save | m.Restore


@dataclass(eq=False)
class Ordered:
    """An order in progress or finished, and its replies by rank."""

    order: GangOrder
    workers: tuple[WorkerId, ...]
    """The ranks that reply to it: all of them, or rank 0 alone."""
    life: int
    replies: dict[WorkerId, m.AnyMessage] = field(default_factory=dict)
    broken: dict[WorkerId, str] = field(default_factory=dict)
    """Ranks whose exchange failed, with the reason."""
    in_exchange: set[WorkerId] = field(default_factory=set)
    """Ranks that have done their share and wait for the others."""
    failure: m.Failed | None = None

    @property
    def name(self) -> str:
        return type(self.order).__name__

    def receive(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """Take a message of one of its ranks, if it belongs to this order."""
        if isinstance(message, m.GangBroken):
            self.broken.setdefault(worker, message.problem)
        elif isinstance(message, m.Failed):
            # A failure names no order and ends all in progress.
            self.failure = self.failure or message
        elif isinstance(message, m.AwaitsRanks):
            if isinstance(self.order, m.Train) and (message.step, message.part) == (self.order.step, self.order.part):
                self.in_exchange.add(worker)
        elif worker in self.workers and worker not in self.replies and is_reply(message, self.order):
            self.replies[worker] = message

    def awaited(self, living: Collection[WorkerId]) -> list[WorkerId]:
        """Living ranks that have neither replied nor failed."""
        done = {*self.replies, *self.broken}
        return [worker for worker in self.workers if worker in living and worker not in done]

    def is_answered(self) -> bool:
        return all(worker in self.replies for worker in self.workers)

    def hung(self, living: Collection[WorkerId]) -> list[WorkerId]:
        """The ranks that the others wait for; all that have not replied, if no rank is known to wait."""
        awaited = self.awaited(living)
        return [worker for worker in awaited if worker not in self.in_exchange] or awaited

    def taken_by(self, living: Collection[WorkerId]) -> bool:
        """Whether a living rank has taken the optimizer step that was ordered, and so holds the sum of all shares."""
        return any(isinstance(self.replies.get(worker), m.Stepped) for worker in self.workers if worker in living)


def order_size(order: GangOrder) -> int:
    """Samples of an order to train; other orders of a kind do not differ in size."""
    return max(len(order.items), 1) if isinstance(order, m.Train) else 1


def is_reply(message: m.AnyMessage, order: GangOrder) -> bool:
    """Whether the message replies to this order.

    A restored worker first reports the outcome of the checkpoint that it was writing, so that its Saved is not taken
    for that of the same step in its next life.
    """
    match order, message:
        case m.FormGang(), m.StoreOpened():
            return not order.store and message.epoch == order.epoch
        case m.FormGang(), m.GangFormed():
            return message.epoch == order.epoch and (bool(order.store) or order.ranks == 1)
        case m.Train(), m.Accumulated():
            return (message.step, message.part) == (order.step, order.part)
        case m.Train(), m.Stepped():
            return order.is_final and message.step == order.step
        case m.Publish(), m.PublishedWeights():
            return message.weights in order.weights
        case ((m.Save() | m.Restore()), m.Saved()):
            is_restored = isinstance(order, m.Restore)
            return (message.step, message.path, message.restored) == (order.step, order.path, is_restored)
        case _:
            return False


def differing(replies: Mapping[WorkerId, m.AnyMessage]) -> dict[str, list[WorkerId]]:
    """Ranks by the digest that they report after a step; more than one key: they hold different weights."""
    by_digest: dict[str, list[WorkerId]] = {}
    for worker, reply in replies.items():
        if isinstance(reply, m.Stepped):
            by_digest.setdefault(reply.digest, []).append(worker)
    return by_digest
