"""A node in virtual time: the real regroup machine, simulated members, and faults drawn from one seed.

Members behave as `control/elastic/regroup.py` requires. Groups behave as measured: an error of one member closes its
sockets and fails the others; a stopped member is noticed only when the operations of the others time out.
"""

import random
from collections.abc import Callable
from heapq import heappop, heappush

from regroup_members import LONGEST_S, WEIGHTS, Group, Member

from spotlight.control.elastic.actions import (
    Action,
    CloseStore,
    Kill,
    OpenStore,
    Order,
    Refuse,
    Relay,
    Replan,
    ReportCrews,
    Send,
    WorkerMessage,
)
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.regroup import Regroup
from spotlight.core.crew_messages import Form, Formed, Forward, ForwardDone, GroupToken, Prepare, Prepared
from spotlight.core.types import NodeId, Size, WorkerId

NODE = NodeId("spot-1.1")
OPERATIONS_S = (1.5, 30.0)
"""Time limits of a group's own operations: below the step deadline, as intended, or far above it."""


class InvariantBroken(Exception):
    """An invariant of the regroup machine does not hold."""


class World:
    """Event queue, agent and checks; `check_invariants` runs after every event."""

    def __init__(self, seed: int, config: ElasticConfig | None = None) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.regroup = Regroup(NODE, "store", config or ElasticConfig(first_step_s=3.0))
        self.members: dict[WorkerId, Member] = {}
        self.known: set[WorkerId] = set()
        """Workers that the machine may send to."""
        self.groups: dict[GroupToken, Group] = {}
        self.opened: set[GroupToken] = set()
        self.closed: set[GroupToken] = set()
        self.members_by_token: dict[GroupToken, tuple[WorkerId, ...]] = {}
        self.agreed: dict[GroupToken, dict[WorkerId, str]] = {}
        """Weights digests that the members of a token reported when prepared."""
        self.formed: dict[GroupToken, set[WorkerId]] = {}
        self.received: list[tuple[WorkerId, WorkerMessage]] = []
        self.refused: list[Refuse] = []
        self.killed: list[Kill] = []
        self.reports: list[ReportCrews] = []
        self.trace: list[str] = []
        self.errors = 0.0
        """Probability that a forward or a connection fails by itself."""
        self.patience_s = self.rng.choice([3.0, LONGEST_S, LONGEST_S])
        self.operation_s = self.rng.choice(OPERATIONS_S)
        self.followers_report = self.rng.random() < 0.5
        self.layout: Callable[[], tuple[tuple[WorkerId, ...], ...]] = self.any_layout

    # -- time ----------------------------------------------------------------------------------------------------------

    def at(self, when: float, what: Callable[[], None]) -> None:
        self.count += 1
        heappush(self.events, (max(when, self.now), self.count, what))

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def delay(self) -> float:
        return self.rng.uniform(0.0, 0.02)

    def run(self, until: float) -> None:
        while True:
            due = self.regroup.next_deadline()
            event = self.events[0][0] if self.events else until
            step = min(event, due if due is not None else until, until)
            if step >= until:
                self.now = until
                return
            self.now = max(self.now, step)
            if due is not None and due <= self.now:
                self.act(self.regroup.tick(self.now))
                again = self.regroup.next_deadline()
                self.check(again is None or again > self.now, "a tick left its own deadline in the past")
            else:
                heappop(self.events)[2]()
            self.check_invariants()

    # -- the agent -----------------------------------------------------------------------------------------------------

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            self.trace.append(f"{self.now:.4f} {action}")
            match action:
                case Send(worker=worker, message=message):
                    self.check(worker in self.known, f"{message} was sent to {worker}, which is gone")
                    self.check_order(worker, message)
                    self.send(worker, message)
                case Relay(workers=workers, message=message):
                    self.check(message.token not in self.closed, f"a forward of closed {message.token} was relayed")
                    for worker in workers:
                        self.check(worker in self.known, f"{message} was sent to {worker}, which is gone")
                        self.send(worker, message)
                case Kill(worker=worker):
                    self.check(worker in self.known, f"{worker} was already gone when killed")
                    self.killed.append(action)
                    self.check_kill(worker, action.why)
                    self.known.discard(worker)
                    self.die(worker)
                case OpenStore(token=token):
                    self.check(token not in self.opened, f"{token} came back")
                    self.opened.add(token)
                case CloseStore(token=token):
                    self.check(token in self.opened - self.closed, f"{token} was closed twice or before it was opened")
                    self.closed.add(token)
                    if token in self.groups:
                        self.groups[token].may_break = True
                        self.fail_group(self.groups[token])
                case Replan():
                    self.act(self.regroup.wish(self.layout(), "as drawn", self.now))
                case ReportCrews():
                    self.reports.append(action)
                case Refuse():
                    self.refused.append(action)

    def check_order(self, worker: WorkerId, message: Order) -> None:
        match message:
            case Prepare(token=token, members=members):
                self.check(token not in self.closed, f"{token} came back")
                self.check(
                    self.members_by_token.setdefault(token, members) == members, f"{token} has two sets of members"
                )
                newest = max(self.members_by_token)
                self.check(token == newest, f"{token} is older than {newest} but prepared after it")
            case Form(token=token):
                prepared = self.agreed.get(token, {})
                self.check(
                    set(self.members_by_token[token]) <= set(prepared), f"{token} is formed before all are prepared"
                )
                self.check(len(set(prepared.values())) == 1, f"{token} is formed of {prepared}")

    def check_kill(self, worker: WorkerId, why: str) -> None:
        """Only a stopped worker may be killed.

        If operations time out late, only heartbeats show a stop: another worker may be killed unless a follower has
        missed three.
        """
        crew = self.members_by_token[
            max(token for token, members in self.members_by_token.items() if worker in members)
        ]
        stopped_followers = [self.members[name] for name in crew[1:] if self.members[name].stopped]
        stopped = [member for member in stopped_followers if self.now - member.stopped_at > 1.6]
        if not self.was_stopped(worker) and (stopped or self.operation_s == min(OPERATIONS_S)):
            self.check(False, f"{worker} was killed but had not stopped: {why}")

    def was_stopped(self, worker: WorkerId) -> bool:
        member = self.members[worker]
        return not member.alive or self.now - member.stopped_until < 3.0

    def send(self, worker: WorkerId, message: Order | Forward) -> None:
        member = self.members[worker]
        member.delivered_at = max(member.delivered_at, self.now + self.delay())
        self.at(member.delivered_at, lambda: self.arrive(member, message))

    def beat(self, member: Member) -> None:
        if member.alive:
            if not member.stopped:
                self.regroup.seen(member.name, self.now)
            self.after(0.5, lambda: self.beat(member))

    def arrive(self, member: Member, message: Order | Forward) -> None:
        if not member.alive:
            return
        if member.stopped:
            self.at(member.stopped_until, lambda: self.arrive(member, message))
        elif isinstance(message, Forward):
            if member.group is not None and member.group.token == message.token:
                self.enter(member, member.group, message.number)
        else:
            member.orders.append(message)
            member.apply_orders()

    def deliver(self, worker: WorkerId, message: WorkerMessage) -> None:
        if isinstance(message, Prepared) and self.regroup.token(worker) == message.token:
            self.agreed.setdefault(message.token, {})[worker] = message.holds[0][1]
        if isinstance(message, Formed):
            self.formed.setdefault(message.token, set()).add(worker)
        self.received.append((worker, message))
        self.trace.append(f"{self.now:.4f} {worker} sends {message}")
        self.act(self.regroup.receive(worker, message, self.now))

    # -- groups --------------------------------------------------------------------------------------------------------

    def connect(self, member: Member, token: GroupToken, members: tuple[WorkerId, ...]) -> None:
        group = self.groups.setdefault(token, Group(token, members))
        group.connecting.add(member.name)
        member.group = group
        if any(not self.members[name].alive or self.members[name].stopped for name in members):
            group.may_break = True
        if token in self.closed:
            group.may_break = True
            self.fail_group(group)
        elif self.rng.random() < self.errors:
            group.may_break = True
            self.after(self.delay(), lambda: member.fail(group, "no connection"))
        elif group.connecting == set(members):
            self.after(self.delay(), lambda: self.connected(group))
        self.after(0.8, lambda: self.time_out(member, group, None))

    def connected(self, group: Group) -> None:
        if group.dropped or any(not self.members[name].alive for name in group.members):
            return
        for name in group.members:
            member = self.members[name]
            if not member.stopped and name in group.connecting:
                group.connecting.discard(name)
                member.waiting_since = None
                member.prepared = None
                member.send(Formed(token=group.token))
        leader = self.members[group.members[0]]
        if not leader.stopped:
            self.after(self.rng.uniform(0.0, 0.2), leader.boundary)

    def forward(self, leader: Member, group: Group) -> None:
        number = group.number + 1
        forward = Forward(
            token=group.token, number=number, weights=WEIGHTS, digest="good", rows=1, tokens=1024, channels=16,
            text_width=8, text_dimension=8, size=Size(512, 512),
        )  # fmt: skip
        leader.send(forward)
        self.enter(leader, group, number)

    def enter(self, member: Member, group: Group, number: int) -> None:
        group.number = number
        group.entered.add(member.name)
        if group.dropped or any(not self.members[name].alive for name in group.members):
            self.fail_group(group)
        elif self.rng.random() < self.errors / 4:
            group.may_break = True
            self.after(self.delay(), lambda: member.fail(group, "a bad collective"))
        elif group.entered == set(group.members):
            self.after(self.rng.uniform(0.02, 0.3), lambda: self.finish(group, number))
        self.after(self.operation_s, lambda: self.time_out(member, group, number))

    def finish(self, group: Group, number: int) -> None:
        if group.number != number or group.entered != set(group.members):
            return
        if any(not self.members[name].alive or self.members[name].stopped for name in group.members):
            return
        group.entered.clear()
        for name in group.members:
            member = self.members[name]
            if name == group.members[0] or self.followers_report:
                member.send(ForwardDone(token=group.token, number=number))
            if name == group.members[0]:
                member.busy = True
                self.after(self.rng.uniform(0.0, 0.2), member.boundary)
            else:
                member.apply_orders()

    def time_out(self, member: Member, group: Group, number: int | None) -> None:
        """Time out the member's operation if it is still in this one."""
        still = member.name in group.connecting if number is None else member.in_forward and group.number == number
        if member.group is group and still:
            awaited = [name for name in group.members if name not in group.entered | group.connecting]
            member.fail(group, "timed out", self.rng.choice([*awaited, None]))

    def fail_group(self, group: Group) -> None:
        """A member left the group: fail every member that is in an operation of it soon."""
        for name in sorted(group.entered | group.connecting):
            member = self.members[name]
            self.after(self.rng.uniform(0.001, 0.05), lambda member=member: self.notice_loss(member, group))

    def notice_loss(self, member: Member, group: Group) -> None:
        if member.name in group.entered | group.connecting:
            member.fail(group, "a neighbour is gone")

    # -- faults --------------------------------------------------------------------------------------------------------

    def join(self) -> WorkerId:
        name = WorkerId(f"{NODE}/{len(self.members)}.1")
        self.members[name] = Member(self, name)
        self.known.add(name)
        self.act(self.regroup.joined(name, self.now))
        self.beat(self.members[name])
        return name

    def die(self, worker: WorkerId) -> None:
        member = self.members[worker]
        if member.alive:
            member.alive = False
            for group in self.groups.values():
                if worker in group.members:
                    group.may_break = True
                    self.fail_group(group)
            self.after(self.delay(), lambda: self.report_loss(worker))

    def report_loss(self, worker: WorkerId) -> None:
        self.known.discard(worker)
        self.act(self.regroup.gone(worker, "SIGKILL", self.now))

    def stop(self, worker: WorkerId, seconds: float) -> None:
        member = self.members[worker]
        member.stopped_at = self.now
        member.stopped_until = self.now + seconds
        for group in self.groups.values():
            if worker in group.members:
                group.may_break = True
        self.at(member.stopped_until, lambda: self.resume(member))

    def resume(self, member: Member) -> None:
        if not member.alive or member.stopped:
            return
        group = member.group
        if group is not None and group.entered == set(group.members):
            self.finish(group, group.number)
        elif group is not None and (group.dropped or member.name in group.connecting):
            member.fail(group, "a neighbour is gone")
        member.boundary()

    def any_layout(self) -> tuple[tuple[WorkerId, ...], ...]:
        """A random partition of the live workers, without pairs that are kept apart."""
        names = list(self.regroup.alive)
        self.rng.shuffle(names)
        crews: list[list[WorkerId]] = []
        apart = self.regroup.apart()
        for name in names:
            fitting = [crew for crew in crews if not any((min(name, x), max(name, x)) in apart for x in crew)]
            if fitting and self.rng.random() < 0.8:
                self.rng.choice(fitting).append(name)
            else:
                crews.append([name])
        return tuple(tuple(crew) for crew in crews)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise InvariantBroken("\n".join([what, *self.trace[-25:]]))

    def check_invariants(self) -> None:
        serving = [name for crew in self.regroup.crews for name in crew]
        self.check(len(serving) == len(set(serving)), f"a worker serves twice: {self.regroup.crews}")
        placed = sorted(name for crew in self.regroup.layout for name in crew if name in self.known)
        self.check(len(placed) == len(set(placed)), f"a worker is in two crews: {self.regroup.layout}")
        live: dict[WorkerId, GroupToken] = {}
        for token in sorted(self.opened - self.closed):
            for name in self.members_by_token[token]:
                self.check(name not in live, f"{name} has the live tokens {live.get(name)} and {token}")
                live[name] = token
        for crew in self.regroup.crews:
            tokens = sorted({token for token in map(self.regroup.token, crew) if token is not None})
            current = [token for token in tokens if self.members_by_token[token] == crew]
            agreed = any(set(crew) <= set(self.agreed[token]) & self.formed[token] for token in current)
            self.check(agreed or not current, f"{crew} serves, though not all its members have agreed and formed")
        for name in sorted(self.known):
            member = self.members[name]
            since = member.waiting_since
            waits = since is not None and member.alive and self.now - max(since, member.stopped_until) > LONGEST_S
            self.check(not waits, f"{name} was forgotten: it waits since {since}")
