"""The workers of a simulated node, as far as crews concern them: obedient, in one group at most, mute while stopped."""

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
"""Longer than any wait of the machine; who holds still so long was forgotten."""


@dataclass
class Group:
    """One token's connections."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    connecting: set[WorkerId] = field(default_factory=set)
    entered: set[WorkerId] = field(default_factory=set)
    number: int = -1
    dropped: set[WorkerId] = field(default_factory=set)
    excused: bool = False
    """Something happened that may cost a step: a loss, a stop, an error, an end by the machine."""


class Member:
    """A worker's side: one order after another, never in two groups, silent while stopped."""

    def __init__(self, world: "World", name: WorkerId) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.stopped_at = self.stopped_until = -100.0
        self.group: Group | None = None
        self.busy = False
        """In a step alone, or between forwards: orders wait for the boundary."""
        self.orders: list[Order] = []
        self.prepared: Prepare | None = None
        self.newest = 0
        self.holds_still_since: float | None = None
        self.digest = "good"
        self.sent_at = 0.0
        self.told_at = 0.0

    @property
    def stopped(self) -> bool:
        return self.world.now < self.stopped_until

    @property
    def in_forward(self) -> bool:
        return self.group is not None and self.name in self.group.entered

    def say(self, word: WorkerMessage) -> None:
        """Over a pipe, which keeps the order."""
        self.sent_at = max(self.sent_at, self.world.now + self.world.delay())
        self.world.at(self.sent_at, lambda: self.world.deliver(self.name, word))

    def obey(self) -> None:
        """Takes the orders that can be taken now."""
        while self.alive and not self.stopped and self.orders and not self.busy and not self.in_forward:
            order = self.orders.pop(0)
            match order:
                case Prepare(token=token) if token.epoch > self.newest:
                    self.newest = token.epoch
                    self.leave()
                    self.prepared = order
                    self.hold_still()
                    holds = ((WEIGHTS, self.digest),)
                    self.say(Prepared(token=token, members=order.members, holds=holds, needs=(WEIGHTS,)))
                case Form(token=token) if self.prepared is not None and self.prepared.token == token:
                    self.world.connect(self, token, order.members)
                case Form(token=token):
                    self.say(Broke(token=token, problem="not prepared"))
                case Disband(token=token):
                    if self.group is not None and self.group.token == token:
                        self.leave()
                    if self.prepared is not None and self.prepared.token == token:
                        self.prepared = None
                    if self.prepared is None and self.group is None:
                        self.holds_still_since = None
                        self.step_alone()
                    self.say(Disbanded(token=token))

    def hold_still(self) -> None:
        if self.holds_still_since is None:
            self.holds_still_since = self.world.now
        if self.world.patience_s < LONGEST_S:
            self.world.after(self.world.patience_s, lambda began=self.holds_still_since: self.despair(began))

    def despair(self, began: float) -> None:
        """Nobody said what next: it goes on alone."""
        if not self.alive or self.stopped or self.holds_still_since != began or self.group is not None:
            return
        self.holds_still_since = None
        if self.prepared is not None:
            self.say(Broke(token=self.prepared.token, problem="waited long enough"))
            self.prepared = None
        self.step_alone()

    def leave(self) -> None:
        group, self.group = self.group, None
        if group is not None:
            group.connecting.discard(self.name)
            group.entered.discard(self.name)
            group.dropped.add(self.name)
            self.world.ripple(group)

    def fail(self, group: Group, problem: str, waited_for: WorkerId | None = None) -> None:
        """Drops the group at once, says so and waits for the next order."""
        if not self.alive or self.stopped or self.group is not group:
            return
        self.world.check(group.excused, f"{self.name} lost a step of {group.token} for no reason: {problem}")
        self.leave()
        self.prepared = None
        self.hold_still()
        self.say(Broke(token=group.token, problem=problem, waited_for=waited_for))
        self.obey()

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
        self.obey()
        group = self.group
        leads = group is not None and group.members[0] == self.name and self.name not in group.connecting
        if group is not None and leads and not self.in_forward:
            self.world.forward(self, group)
