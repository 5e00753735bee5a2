"""The crews of one node, driven by its agent: events go in, orders to workers come out.

Connects three parts: `LayoutPlanner` chooses a layout, `Regroup` owns tokens and states and returns actions, and the
group store connects members. A death is handled at once, without the controller; the controller's `Demand` is only
stored. No method waits: one timer calls `tick` at the state machine's next deadline. Part of `AgentCore`.

Invariant (tests/unit/test_crews_in_transit.py): messages in transit do not undo a layout. Examples are a grant that a
new follower hands back, the next sample of a leader that has just finished, and weights that the other members hold.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from statistics import median
from typing import Protocol

from spotlight.control.elastic import actions as act
from spotlight.control.elastic.formation import Layout
from spotlight.control.elastic.layout import Decision, LayoutPlanner, RowView, Situation, SlotView, Waiting
from spotlight.control.elastic.regroup import Regroup
from spotlight.core import messages as m
from spotlight.core.clock import Timer, Timers
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
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, RequestId, WeightsId
from spotlight.node.node_settings import NodeSettings
from spotlight.node.notices.notice import Notice

log = logging.getLogger("spotlight.crews")
log.addHandler(logging.NullHandler())

ANSWER_S = 0.2
"""Wait for the controller's grant to a worker with free rows; a layout chosen earlier would be undone by the grant."""
CREWS_ONLY = (Prepared, Formed, Broke, Disbanded, Forward, ForwardDone)
"""Messages of workers that are not relayed."""


class NodeActions(Protocol):
    """The node's methods that crews call."""

    def send(self, worker: WorkerId, message: m.AnyMessage) -> None: ...

    def kill_worker(self, worker: WorkerId, why: str) -> None: ...

    def report(self, crewed: Crewed) -> None: ...


class _NoActions:
    """Actions of a node that is gone."""

    def send(self, worker: WorkerId, message: m.AnyMessage) -> None:
        pass

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        pass

    def report(self, crewed: Crewed) -> None:
        pass


class Rendezvous(Protocol):
    """The group store, or the simulator's stand-in."""

    def open(self, token: GroupToken) -> None: ...

    def close(self, token: GroupToken) -> None: ...


@dataclass
class MemberInfo:
    """State of one worker."""

    kind: str
    speed: float | None = None
    """Row-steps per second alone; None before the first measurement."""
    holds: set[WeightsId] = field(default_factory=set)
    steps: dict[RequestId, int] = field(default_factory=dict)
    """Step of each of its samples, as last reported."""


class NodeCrews:
    """One per node of two slots or more; every method returns at once."""

    def __init__(
        self,
        settings: NodeSettings,
        node_actions: NodeActions,
        rendezvous: Rendezvous,
        leases: Callable[[WorkerId], Mapping[RequestId, m.Granted]],
        timers: Timers,
    ) -> None:
        config = settings.elastic
        self._heads = settings.heads
        self._token_pixels = settings.token_pixels
        self._can_share = settings.can_share
        """Whether there is more than one layout; if not, none is chosen."""
        self._node_actions = node_actions
        self._rendezvous = rendezvous
        self._leases = leases
        self._efficiency = config.efficiency()
        self._planner = LayoutPlanner(config, self._efficiency)
        self._regroup = Regroup(settings.node, settings.group_store, config, max(1.0, 2 * settings.heartbeat_s))
        self._members: dict[WorkerId, MemberInfo] = {}
        self._notice: float | None = None
        """Deadline of the node's imminent notice."""
        self._sets: frozenset[WeightsId] = frozenset()
        """Weights that every worker of the node should hold."""
        self._loaders: tuple[WorkerId, ...] = ()
        """Workers that had to load when these weights were announced; empty once all of them hold the weights."""
        self._waiting = Waiting()
        self._decision: Decision | None = None
        self._timers = timers
        self._timer: Timer | None = None
        self._hysteresis_s = config.hysteresis_s
        self._decide_at: float = inf
        """Time of the next decision, for a change that came too soon after the last one or before the next grant."""
        self._is_scheduled = False
        """Whether a decision is scheduled."""
        self._was_busy: frozenset[WorkerId] = frozenset()
        """Workers that had samples at the last decision."""

    @property
    def refused(self) -> int:
        """Number of refused messages: those with an old token, or not expected in the current state."""
        return self._regroup.refused

    @property
    def members(self) -> Collection[WorkerId]:
        """Workers that may become members of crews."""
        return self._members.keys()

    # -- events --------------------------------------------------------------------------------------------------------

    def receive(self, worker: WorkerId, message: m.AnyMessage) -> bool:
        """Process a worker's message; True if it concerns only crews and is not relayed."""
        info = self._members.get(worker)
        now = self._timers.time()
        if isinstance(message, CREWS_ONLY):
            self._do(self._regroup.receive(worker, message, now))
            return True
        match message:
            # A worker that trains belongs to the gang and joins no crew, which could delay its orders.
            case m.Hello() if not message.trains:
                self._members[worker] = MemberInfo(kind=message.kind)
                if self._can_share:
                    self._do(self._regroup.joined(worker, now))
                    self._do(self._regroup.noticed(worker, self._notice, now))
            case m.Held() if info is not None:
                info.holds.add(message.weights)
                if self._can_share:
                    self._do(self._regroup.held(worker, message.weights, now))
            case m.Pull() if info is not None:
                if self._degree(worker) == 1:
                    info.speed = message.row_steps_per_s or info.speed
            case m.Alive() if info is not None:
                self._regroup.seen(worker, now)
                info.steps = {each.request: each.step for each in message.progress}
                if message.gain is not None:
                    self._record_gain(worker, message.gain)
        return False

    def holder(self, weights: WeightsId, other_than: WorkerId) -> WorkerId | None:
        """A worker that holds these weights and can offer a copy; workers of the same device kind first."""
        kind = self._members[other_than].kind if other_than in self._members else ""
        holders = [worker for worker, info in self._members.items() if weights in info.holds and worker != other_than]
        return min(holders, key=lambda worker: (self._members[worker].kind != kind, worker), default=None)

    def changed(self) -> None:
        """Decide again after a change of leases: workers may have become idle or busy."""
        if not self._can_share or len(self._members) < 2:
            return
        busy = self._busy()
        if busy < self._was_busy:
            # Some workers have finished: wait for their next grants before their crews are disbanded.
            self._decide_at = min(self._decide_at, self._timers.time() + ANSWER_S)
            self._set_timer()
        elif not self._is_scheduled:
            # One decision for all leases of one iteration of the event loop: a grant has many.
            self._is_scheduled = True
            self._timers.call_soon(partial(self._decide, "leases changed"))

    def dropped(self, keep: Collection[WeightsId]) -> None:
        """Record the sets to keep; workers that lack one are about to load it."""
        self._sets = frozenset(keep)
        for info in self._members.values():
            info.holds &= self._sets
        self._loaders = tuple(worker for worker in sorted(self._members) if self._is_loading(worker))
        if any(self._is_loading(worker) for crew in self._regroup.crews for worker in crew):
            # Before they receive the Load: a crew would take a member that loads for hung.
            self._decide("weights are to be loaded")

    def demand(self, demand: Demand) -> None:
        self._waiting = Waiting.of(demand.waiting, demand.pressing)
        self._decide("the controller expects other work")

    def warned(self, notice: Notice) -> None:
        """Apply the node's new notice: under an imminent one crews end at their next step boundary, and none form."""
        is_imminent = notice.kind is NoticeKind.IMMINENT and not notice.withdrawn
        self._notice = notice.deadline if is_imminent else None
        for worker in sorted(self._members):
            self._do(self._regroup.noticed(worker, self._notice, self._timers.time()))

    def died(self, worker: WorkerId, why: str) -> None:
        if self._members.pop(worker, None) is not None:
            self._do(self._regroup.gone(worker, why, self._timers.time()))

    def leave(self) -> None:
        """Send nothing more, and drop the reference to the node, which is gone."""
        self._node_actions = _NoActions()
        if self._timer is not None:
            self._timer.cancel()

    # -- actions -------------------------------------------------------------------------------------------------------

    def _do(self, actions: list[act.Action]) -> None:
        for action in actions:
            match action:
                case act.Send(worker, message):
                    self._node_actions.send(worker, message)
                case act.Relay(workers, message):
                    for worker in workers:
                        self._node_actions.send(worker, message)
                case act.Kill(worker, why):
                    log.warning("%s is killed: it %s", worker, why)
                    self._members.pop(worker, None)
                    self._node_actions.kill_worker(worker, why)
                case act.OpenStore(token):
                    self._rendezvous.open(token)
                case act.CloseStore(token):
                    self._rendezvous.close(token)
                case act.ReportCrews(crewed):
                    log.info("epoch %d: crews %s (%s)", crewed.epoch, crewed.crews, crewed.reason)
                    self._node_actions.report(crewed)
                case act.Replan(why):
                    self._decide(why)
                case act.Refuse(worker, message, why):
                    log.info("%s of %s is refused: %s", type(message).__name__, worker, why)
        self._set_timer()

    def _decide(self, why: str) -> None:
        if not self._can_share:
            return
        now = self._timers.time()
        self._is_scheduled = False
        self._was_busy = self._busy()
        decision = self._decision = self._choose(self._after_load(now), now)
        settled = decision.changed_at + self._hysteresis_s
        self._decide_at = settled if settled > now else inf
        self._do(self._regroup.wish(decision.layout, f"{why}; {decision.reason}", now))

    def _choose(self, last: Decision | None, now: float) -> Decision:
        situation = Situation(
            slots=tuple(self._view(worker) for worker in sorted(self._members)),
            waiting=self._waiting,
            heads=self._heads,
            apart=self._regroup.apart(),
        )
        decision = self._planner.decide(situation, last, now)
        decision = replace(decision, layout=self._keep_existing(decision.layout))
        if last is not None and sorted(decision.layout) == sorted(last.layout):
            decision = replace(decision, changed_at=last.changed_at)
        elif last is not None and any(worker not in self._members for members in last.layout for worker in members):
            # A loss needs no settling time: survivors share a dead leader's sample as soon as one of them has it.
            decision = replace(decision, changed_at=-inf)
        return decision

    def _after_load(self, now: float) -> Decision | None:
        """The last decision, with the time from which it settles.

        A load breaks up crews without a decision, so they form again when all members hold the weights and the
        controller has had time to grant. Until then the first workers that hold them do not change the layout, unless
        the others take longer than the hysteresis.
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

    def _keep_existing(self, layout: Layout) -> Layout:
        """Keep existing crews whose only change is the order of followers; members that load weights stay alone."""
        known = {(members[0], frozenset(members)): members for members in self._regroup.layout}
        crews: list[tuple[WorkerId, ...]] = []
        for members in layout:
            if any(self._is_loading(member) for member in members):
                crews += [(member,) for member in members]
            else:
                crews.append(known.get((members[0], frozenset(members)), members))
        return tuple(crews)

    def _view(self, worker: WorkerId) -> SlotView:
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
            rows=tuple(rows),
            holds=frozenset() if self._is_loading(worker) else frozenset(info.holds),
            notice=self._notice,
        )

    def _busy(self) -> frozenset[WorkerId]:
        """Workers with samples of their own."""
        return frozenset(worker for worker in self._members if self._own_leases(worker))

    def _own_leases(self, worker: WorkerId) -> Mapping[RequestId, m.Granted]:
        """The leases that the worker computes; none if it follows.

        A grant that crossed the order to follow is handed back. A layout that counted it would undo the crew, and the
        sample would move to a slot that follows by then, again and again.
        """
        leases = self._leases(worker)
        follows = bool(leases) and any(worker in members[1:] for members in self._regroup.layout)
        return {} if follows else leases

    def _is_loading(self, worker: WorkerId) -> bool:
        """Whether the worker lacks weights: in a crew it would block the other members' steps."""
        return worker in self._members and not self._sets <= self._members[worker].holds

    def _speed(self, info: MemberInfo) -> float:
        """Measured speed, else the median of the same device kind, else the median of the node, else 1."""
        if info.speed is not None:
            return info.speed
        measured = [(other.kind, other.speed) for other in self._members.values() if other.speed is not None]
        alike = [speed for kind, speed in measured if kind == info.kind] or [speed for _, speed in measured]
        return median(alike) if alike else 1.0

    def _degree(self, worker: WorkerId) -> int:
        return next((len(crew) for crew in self._regroup.crews if worker in crew), 1)

    def _record_gain(self, leader: WorkerId, gain: float) -> None:
        """Record a crew's gain in the efficiency table, relative to speed 1 alone."""
        tokens = max((row.tokens for row in self._view(leader).rows), default=0)
        if tokens and self._degree(leader) > 1:
            self._efficiency.measured(tokens, 1, 1.0)
            self._efficiency.measured(tokens, self._degree(leader), gain)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._regroup.next_deadline()
        due = min(self._decide_at, inf if deadline is None else deadline)
        if due < inf:
            self._timer = self._timers.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._timers.time()
        self._do(self._regroup.tick(now))
        if self._decide_at <= now:
            self._decide("the last change has settled")
