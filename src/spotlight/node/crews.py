"""The crews of one node, as its agent drives them: what happens goes in, orders to workers go out.

Ties three things together: `Planner` chooses a layout, `Regroup` owns tokens and states and says what to do, and the
group store lets members find each other. A death is acted on at once, without asking the controller; its `Demand` is
only remembered. Waits for nothing itself: one timer of the event loop calls `tick` at the machine's next deadline.
The simulator drives the same class. Free of torch.

Invariant (tests/unit/test_crews_in_transit.py): a layout is not undone over what is on its way, be it a grant that a
new follower hands back, the next sample of a leader that has just finished, or weights that the others hold already.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Protocol

from spotlight.control.elastic import actions as act
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.formation import Layout
from spotlight.control.elastic.layout import Decision, LayoutPlanner, RowView, Situation, SlotView, Waiting
from spotlight.control.elastic.regroup import Regroup
from spotlight.core import messages as m
from spotlight.core.crew_messages import (
    Broke,
    Crewed,
    Demand,
    Disbanded,
    Formed,
    Forward,
    ForwardDone,
    GroupToken,
    Prepared,
)
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, RequestId, WeightsId

log = logging.getLogger("spotlight.crews")
log.addHandler(logging.NullHandler())

ANSWER_S = 0.2
"""How long who has room again may wait to be given work: a layout that was chosen before would be undone over it."""


class NodeActions(Protocol):
    """What crews need from their node."""

    def tell(self, worker: WorkerId, message: m.AnyMessage) -> None: ...

    def kill_worker(self, worker: WorkerId, why: str) -> None: ...

    def report(self, crewed: Crewed) -> None: ...


class _Nobody:
    """The household of a node that is gone."""

    def tell(self, worker: WorkerId, message: m.AnyMessage) -> None:
        pass

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        pass

    def report(self, crewed: Crewed) -> None:
        pass


class Rendezvous(Protocol):
    """The group store, or what stands for it."""

    def open(self, token: GroupToken) -> None: ...

    def close(self, token: GroupToken) -> None: ...


@dataclass
class MemberInfo:
    """What is known of one worker."""

    since: float
    kind: str
    speed: float | None = None
    """Row-steps per second alone; None before it was measured."""
    holds: set[WeightsId] = field(default_factory=set)
    notice: float | None = None
    steps: dict[RequestId, int] = field(default_factory=dict)
    """How far each of its samples is, from its last words."""


class NodeCrews:
    """One per node of two slots or more; every method returns at once."""

    def __init__(
        self,
        node: NodeId,
        config: ElasticConfig,
        heads: int,
        token_pixels: int,
        store: str,
        household: NodeActions,
        rendezvous: Rendezvous,
        leases: Callable[[WorkerId], Mapping[RequestId, m.Granted]],
        heartbeat_s: float = 0.5,
    ) -> None:
        self._heads = heads
        self._token_pixels = token_pixels
        """Pixels of the picture that one token stands for."""
        self._household = household
        self._rendezvous = rendezvous
        self._leases = leases
        self._efficiency = config.efficiency()
        self._planner = LayoutPlanner(config, self._efficiency)
        self._regroup = Regroup(node, store, config, max(1.0, 2 * heartbeat_s))
        self._members: dict[WorkerId, MemberInfo] = {}
        self._sets: frozenset[WeightsId] = frozenset()
        """Weights that every worker here is to hold."""
        self._loaders: tuple[WorkerId, ...] = ()
        """Who began to load the newest of them together."""
        self._waiting = Waiting()
        self._decision: Decision | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._hysteresis_s = config.hysteresis_s
        self._look_again: float = inf
        """When a change that came too soon after the last one, or before the controller's answer, may be made."""
        self._is_due = False
        """A decision is on its way already."""
        self._was_busy: frozenset[WorkerId] = frozenset()
        """Who had samples when a layout was last chosen."""

    @property
    def refused(self) -> int:
        """Words of workers with an old token or out of turn, so far."""
        return self._regroup.refused

    # -- what happens --------------------------------------------------------------------------------------------------

    def heard(self, worker: WorkerId, message: m.AnyMessage) -> bool:
        """Whatever a worker says; True where it concerned crews alone and goes no further."""
        info = self._members.get(worker)
        now = self._loop.time()
        if isinstance(message, Prepared | Formed | Broke | Disbanded | Forward | ForwardDone):
            self._do(self._regroup.receive(worker, message, now))
            return True
        match message:
            # A worker that trains is the gang's: no crew may keep it from its orders.
            case m.Hello() if not message.trains:
                self._members[worker] = MemberInfo(since=now, kind=message.kind)
                self._do(self._regroup.joined(worker, now))
            case m.Held() if info is not None:
                info.holds.add(message.weights)
                self._do(self._regroup.held(worker, message.weights, now))
            case m.Pull() if info is not None:
                if self._degree(worker) == 1:
                    info.speed = message.row_steps_per_s or info.speed
            case m.Alive() if info is not None:
                self._regroup.seen(worker, now)
                info.steps = {each.request: each.step for each in message.progress}
                if message.gain is not None:
                    self._learn(worker, message.gain)
        return False

    def holder(self, weights: WeightsId, other_than: WorkerId) -> WorkerId | None:
        """Somebody who can give a newcomer a copy; its own kind first."""
        kind = self._members[other_than].kind if other_than in self._members else ""
        holders = [worker for worker, info in self._members.items() if weights in info.holds and worker != other_than]
        return min(holders, key=lambda worker: (self._members[worker].kind != kind, worker), default=None)

    def changed(self) -> None:
        """Leases came or went: somebody may have become idle, or busy."""
        if len(self._members) < 2:
            return
        busy = self._busy()
        if busy < self._was_busy:
            # Some have finished and may be given their next samples before it is worth undoing their crews.
            self._look_again = min(self._look_again, self._loop.time() + ANSWER_S)
            self._set_timer()
        elif not self._is_due:
            # Once for all that one turn of the loop brings: a grant has many leases.
            self._is_due = True
            self._loop.call_soon(self._decide, "leases changed")

    def dropped(self, keep: Collection[WeightsId]) -> None:
        """Only these sets are still held, and whoever lacks one is about to load it."""
        self._sets = frozenset(keep)
        for info in self._members.values():
            info.holds &= self._sets
        self._loaders = tuple(worker for worker in sorted(self._members) if self._is_loading(worker))
        if any(self._is_loading(worker) for crew in self._regroup.crews for worker in crew):
            # Before they hear of it: a crew in which somebody loads would take that one for hung.
            self._decide("weights are to be loaded")

    def demand(self, demand: Demand) -> None:
        self._waiting = Waiting.of(demand.waiting, demand.pressing)
        self._decide("the controller expects other work")

    def warned(self, kind: NoticeKind, seconds: float) -> None:
        """The whole node goes: its crews end at their next boundary."""
        if kind is NoticeKind.IMMINENT:
            now = self._loop.time()
            for worker in sorted(self._members):
                self._members[worker].notice = now + seconds
            for worker in sorted(self._members):
                self._do(self._regroup.noticed(worker, now + seconds, now))

    def died(self, worker: WorkerId, why: str) -> None:
        if self._members.pop(worker, None) is not None:
            self._do(self._regroup.gone(worker, why, self._loop.time()))

    def leave(self) -> None:
        """The node is gone: nobody is told anything any more, and nothing here leads back to it."""
        self._household = _Nobody()

    # -- what is done about it -----------------------------------------------------------------------------------------

    def _do(self, actions: list[act.Action]) -> None:
        for action in actions:
            match action:
                case act.Send(worker, message):
                    self._household.tell(worker, message)
                case act.Relay(workers, message):
                    for worker in workers:
                        self._household.tell(worker, message)
                case act.Kill(worker, why):
                    log.warning("%s is killed: it %s", worker, why)
                    self._members.pop(worker, None)
                    self._household.kill_worker(worker, why)
                case act.OpenStore(token):
                    self._rendezvous.open(token)
                case act.CloseStore(token):
                    self._rendezvous.close(token)
                case act.Report(crewed):
                    log.info("epoch %d: crews %s (%s)", crewed.epoch, crewed.crews, crewed.reason)
                    self._household.report(crewed)
                case act.Replan(why):
                    self._decide(why)
                case act.Refuse(worker, message, why):
                    log.info("%s of %s is refused: %s", type(message).__name__, worker, why)
        self._set_timer()

    def _decide(self, why: str) -> None:
        now = self._loop.time()
        self._is_due = False
        self._was_busy = self._busy()
        last = self._after_load(now)
        # Where slots never share nobody sits, and the node is told of demand all the same.
        is_idle = last is not None and not last.layout and not self._members
        decision = last if last is not None and is_idle else self._choose(last, now)
        self._decision = decision
        settled = decision.changed_at + self._hysteresis_s
        self._look_again = settled if settled > now else inf
        self._do(self._regroup.wish(decision.layout, f"{why}; {decision.reason}", now))

    def _choose(self, last: Decision | None, now: float) -> Decision:
        situation = Situation(
            slots=tuple(self._view(worker, now) for worker in sorted(self._members)),
            waiting=self._waiting,
            heads=self._heads,
            apart=self._regroup.apart(),
        )
        decision = self._planner.decide(situation, last, now)
        decision = replace(decision, layout=self._as_they_are(decision.layout))
        if last is not None and sorted(decision.layout) == sorted(last.layout):
            decision = replace(decision, changed_at=last.changed_at)
        elif last is not None and any(worker not in self._members for members in last.layout for worker in members):
            # A loss is no choice, so nobody waits for it to settle: survivors share a dead leader's sample again as
            # soon as one of them has it.
            decision = replace(decision, changed_at=-inf)
        return decision

    def _after_load(self, now: float) -> Decision | None:
        """The last decision, with the time from which it is to settle.

        What a load does to crews is no choice either, so they form again when all hold the weights and the controller
        has had time to answer. Until then the first to hold them do not choose for all, unless the others take longer
        than any change needs to settle.
        """
        last = self._decision
        if last is None or not self._loaders:
            return last
        late = [worker for worker in self._loaders if self._is_loading(worker)]
        if 0 < len(late) < len(self._loaders):
            return last if last.changed_at > -inf else replace(last, changed_at=now)
        if late:
            return replace(last, changed_at=-inf)
        self._loaders = ()
        return replace(last, changed_at=now - max(0.0, self._hysteresis_s - ANSWER_S))

    def _as_they_are(self, layout: Layout) -> Layout:
        """Crews that there are already stay as they are: another order of followers is no reason to form anew.

        Who loads weights stands alone meanwhile.
        """
        known = {(members[0], frozenset(members)): members for members in self._regroup.layout}
        crews: list[tuple[WorkerId, ...]] = []
        for members in layout:
            if any(self._is_loading(member) for member in members):
                crews += [(member,) for member in members]
            else:
                crews.append(known.get((members[0], frozenset(members)), members))
        return tuple(crews)

    def _view(self, worker: WorkerId, now: float) -> SlotView:
        info = self._members[worker]
        rows = []
        for request, granted in self._own_leases(worker).items():
            sampling = granted.request.sample.sampling
            done = max(granted.step, info.steps.get(request, 0))
            tokens = sampling.size.height * sampling.size.width // self._token_pixels
            rows.append(RowView(max(1, sampling.steps - done), tokens, granted.request.weights))
        return SlotView(
            worker=worker,
            kind=info.kind,
            speed=self._speed(info) / max(self._speed(other) for other in self._members.values()),
            age_s=now - info.since,
            rows=tuple(rows),
            holds=frozenset() if self._is_loading(worker) else frozenset(info.holds),
            notice=info.notice,
        )

    def _busy(self) -> frozenset[WorkerId]:
        """Who has samples of its own."""
        return frozenset(worker for worker in self._members if self._own_leases(worker))

    def _own_leases(self, worker: WorkerId) -> Mapping[RequestId, m.Granted]:
        """What it works on; nothing where it follows.

        A grant that crossed the order to follow is handed back. A layout that made room for it would undo the crew, and
        the sample would go on to a slot that follows by then, again and again.
        """
        leases = self._leases(worker)
        follows = bool(leases) and any(worker in members[1:] for members in self._regroup.layout)
        return {} if follows else leases

    def _is_loading(self, worker: WorkerId) -> bool:
        """Whether it lacks weights: in a crew it would keep the others from stepping."""
        return worker in self._members and not self._sets <= self._members[worker].holds

    def _speed(self, info: MemberInfo) -> float:
        """A slot that was not measured is taken for the usual one of its kind, or else of the node."""
        if info.speed is not None:
            return info.speed
        measured = [(other.kind, other.speed) for other in self._members.values() if other.speed is not None]
        alike = [speed for kind, speed in measured if kind == info.kind] or [speed for _, speed in measured]
        return median(alike) if alike else 1.0

    def _degree(self, worker: WorkerId) -> int:
        return next((len(crew) for crew in self._regroup.crews if worker in crew), 1)

    def _learn(self, leader: WorkerId, gain: float) -> None:
        """As speeds, for a table of speeds: alone it has 1."""
        tokens = max((row.tokens for row in self._view(leader, self._loop.time()).rows), default=0)
        if tokens and self._degree(leader) > 1:
            self._efficiency.measured(tokens, 1, 1.0)
            self._efficiency.measured(tokens, self._degree(leader), gain)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._regroup.next_deadline()
        due = min(self._look_again, inf if deadline is None else deadline)
        if due < inf:
            self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        self._do(self._regroup.tick(now))
        if self._look_again <= now:
            self._decide("things have settled")
