"""Crew members of a simulated node: each applies its orders, is in one group at most, sends nothing while stopped."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotlight.control.elastic.actions import Order, WorkerMessage
from spotlight.core.crew_messages import Broke, Disband, Disbanded, Form, GroupToken, Prepare, Prepared
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId

if TYPE_CHECKING:
    from regroup_world import World

WEIGHTS = WeightsId(Version(1))
LONGEST_S = 14.0
"""Longer than any wait of the machine: a member that waits longer was forgotten."""


@dataclass
class Group:
    """Connections of one token."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    connecting: set[WorkerId] = field(default_factory=set)
    entered: set[WorkerId] = field(default_factory=set)
    number: int = -1
    dropped: set[WorkerId] = field(default_factory=set)
    may_break: bool = False
    """Whether a step may be lost: after a loss, a stop, an error, or an end by the machine."""


class Member:
    """One worker: applies one order after another, is never in two groups, sends nothing while stopped."""

    def __init__(self, world: "World", name: WorkerId) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.stopped_at = self.stopped_until = -100.0
        self.group: Group | None = None
        self.busy = False
        """Whether it is in a step of its own or between forwards: orders wait for the boundary."""
        self.orders: list[Order] = []
        self.prepared: Prepare | None = None
        self.newest = 0
        self.waiting_since: float | None = None
        self.digest = "good"
        self.sent_at = 0.0
        self.delivered_at = 0.0

    @property
    def stopped(self) -> bool:
        return self.world.now < self.stopped_until

    @property
    def in_forward(self) -> bool:
        return self.group is not None and self.name in self.group.entered

    def send(self, message: WorkerMessage) -> None:
        """Send over a pipe, which keeps the order."""
        self.sent_at = max(self.sent_at, self.world.now + self.world.delay())
        self.world.at(self.sent_at, lambda: self.world.deliver(self.name, message))

    def apply_orders(self) -> None:
        """Apply the orders that can be applied now."""
        while self.alive and not self.stopped and self.orders and not self.busy and not self.in_forward:
            order = self.orders.pop(0)
            match order:
                case Prepare(token=token) if token.epoch > self.newest:
                    self.newest = token.epoch
                    self.leave()
                    self.prepared = order
                    self.wait_for_orders()
                    holds = ((WEIGHTS, self.digest),)
                    self.send(Prepared(token=token, members=order.members, holds=holds, needs=(WEIGHTS,)))
                case Form(token=token) if self.prepared is not None and self.prepared.token == token:
                    self.world.connect(self, token, order.members)
                case Form(token=token):
                    self.send(Broke(token=token, problem="not prepared"))
                case Disband(token=token):
                    if self.group is not None and self.group.token == token:
                        self.leave()
                    if self.prepared is not None and self.prepared.token == token:
                        self.prepared = None
                    if self.prepared is None and self.group is None:
                        self.waiting_since = None
                        self.step_alone()
                    self.send(Disbanded(token=token))

    def wait_for_orders(self) -> None:
        if self.waiting_since is None:
            self.waiting_since = self.world.now
        if self.world.patience_s < LONGEST_S:
            self.world.after(self.world.patience_s, lambda began=self.waiting_since: self.give_up_waiting(began))

    def give_up_waiting(self, began: float) -> None:
        """No order arrived in time: continue alone."""
        if not self.alive or self.stopped or self.waiting_since != began or self.group is not None:
            return
        self.waiting_since = None
        if self.prepared is not None:
            self.send(Broke(token=self.prepared.token, problem="waited long enough"))
            self.prepared = None
        self.step_alone()

    def leave(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.connecting.discard(self.name)
            group.entered.discard(self.name)
            group.dropped.add(self.name)
            self.world.fail_group(group)

    def fail(self, group: Group, problem: str, waited_for: WorkerId | None = None) -> None:
        """Drop the group at once, report it and wait for the next order."""
        if not self.alive or self.stopped or self.group is not group:
            return
        self.world.check(group.may_break, f"{self.name} lost a step of {group.token} without a cause: {problem}")
        self.leave()
        self.prepared = None
        self.wait_for_orders()
        self.send(Broke(token=group.token, problem=problem, waited_for=waited_for))
        self.apply_orders()

    def step_alone(self) -> None:
        if self.world.rng.random() < 0.5:
            self.busy = True
            self.world.after(self.world.rng.uniform(0.01, 3.0), self.boundary)

    def boundary(self) -> None:
        if not self.alive:
            return
        if self.stopped:
            self.world.at(self.stopped_until, self.boundary)
            return
        self.busy = False
        self.apply_orders()
        group = self.group
        leads = group is not None and group.members[0] == self.name and self.name not in group.connecting
        if group is not None and leads and not self.in_forward:
            self.world.forward(self, group)
