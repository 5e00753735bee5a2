"""The slots and crews of one node, and how a crew begins and ends; `regroup.py` decides when.

Invariant: a worker that left `slots` receives no message, and a crew that ends leaves every survivor either free or in
a breakup that bounds the wait for it (tests/storm/test_regroup_storm.py).
"""

from dataclasses import dataclass, field

from spotlight.control.elastic.actions import Action, CloseStore, Kill, Replan, ReportCrews, Send
from spotlight.control.elastic.breakups import Breakup, Breakups
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.crew_life import Crew, CrewState
from spotlight.control.elastic.distrust import Distrust
from spotlight.core.crew_messages import Crewed, Disband, GroupToken, Prepare
from spotlight.core.types import NodeId, WorkerId

Layout = tuple[tuple[WorkerId, ...], ...]
"""Crews of a node, the leader first; a worker alone may be a crew of one or left out."""

IN_USE = (CrewState.SERVING, CrewState.DRAINING)


@dataclass(slots=True)
class FormationWorker:
    """A worker that is alive."""

    seen_at: float
    crew: Crew | None = None
    notice: float | None = None
    disturbed_at: float | None = None
    """Time since which it waits for its next crew after a loss."""
    ended_tokens: set[GroupToken] = field(default_factory=set)
    """Ended tokens that it may still confirm."""


class Formation:
    """Membership of slots and crews; every method returns the actions to carry out."""

    def __init__(self, node: NodeId, config: ElasticConfig, lifeless_s: float) -> None:
        self._lifeless_s = lifeless_s
        self._node = node
        self._config = config
        self.epoch = 0
        self.slots: dict[WorkerId, FormationWorker] = {}
        self.crews: dict[GroupToken, Crew] = {}
        self.breakups = Breakups()
        self.distrust = Distrust()

    @property
    def in_use(self) -> Layout:
        return tuple(crew.members for crew in self.led() if crew.state in IN_USE)

    def led(self) -> list[Crew]:
        """All crews but those whose leader has left."""
        return [crew for _, crew in sorted(self.crews.items()) if crew.leader not in crew.left]

    def lifeless(self, now: float) -> set[WorkerId]:
        """Workers without a sign of life for longer than a live process needs."""
        return {worker for worker, slot in self.slots.items() if now - slot.seen_at >= self._lifeless_s}

    def may_form(self, members: tuple[WorkerId, ...]) -> bool:
        return not self.distrust.parts(members) and all(self._is_free(member) for member in members)

    def _is_free(self, worker: WorkerId) -> bool:
        slot = self.slots.get(worker)
        free = slot is not None and slot.crew is None and slot.notice is None
        return free and not self.breakups.keep_apart(worker)

    def prepare(self, members: tuple[WorkerId, ...], reason: str, now: float) -> list[Action]:
        """Form a new token; for a worker that is still leaving an old one, this order ends that too."""
        self.epoch += 1
        slots = [self.slots[member] for member in members]
        began = min((slot.disturbed_at for slot in slots if slot.disturbed_at is not None), default=now)
        token = GroupToken(self._node, self.epoch)
        crew = Crew(token, members, began, reason)
        crew.wait(now, now + self._config.boundary_s)
        self.crews[token] = crew
        for member, slot in zip(members, slots, strict=True):
            slot.crew = crew
            self.breakups.ordered(member)
        return [Send(member, Prepare(token=token, members=members)) for member in members]

    def drain(self, crew: Crew, why: str, now: float) -> list[Action]:
        """End the crew in order, the leader first: once it has left no forward begins, so the followers lose none."""
        crew.state = CrewState.DRAINING
        crew.reason = why
        if crew.running is None:
            crew.wait(now, now + self._config.boundary_s)
        return [self._disband(crew.leader, crew.token)]

    def drain_followers(self, crew: Crew, now: float) -> list[Action]:
        """End the crew for its followers, after the leader has left at a boundary."""
        crew.state = CrewState.DRAINING
        crew.running = None
        crew.wait(now, now + self._config.boundary_s)
        orders = [self._disband(follower, crew.token) for follower in crew.followers]
        return [*self._close_store(crew), self.report(crew.reason, 0.0), *orders]

    def fail(self, crew: Crew, why: str, blamed: set[WorkerId], now: float) -> list[Action]:
        """End the crew after an error or a missed deadline; the breakup finds out whether a member died.

        Where no group existed a death does not show as an error, so the blamed members are distrusted at once.
        """
        if crew.has_group:
            return self.end(crew, why, now, explained=False, blamed=blamed)
        self.distrust.failed(crew.members, blamed, now)
        return [*self.end(crew, why, now, explained=True), Replan(why)]

    def end(
        self, crew: Crew, why: str, now: float, *, explained: bool, blamed: set[WorkerId] | None = None
    ) -> list[Action]:
        """End the crew at once; survivors wait for the next order, and must soon confirm that they left."""
        del self.crews[crew.token]
        survivors = {member for member in crew.members if member in self.slots and self.slots[member].crew is crew}
        waiting = survivors - crew.left if crew.has_group else set()
        by = now + self._config.quiesce_s
        if crew.state is CrewState.CONNECTING:
            by = max(by, crew.deadline)
        for member in sorted(survivors):
            slot = self.slots[member]
            slot.crew = None
            slot.disturbed_at = now if slot.disturbed_at is None else slot.disturbed_at
            if member not in crew.left:
                slot.ended_tokens.add(crew.token)
            self.breakups.renew_order(member, now + self._config.quiesce_s)
        self.breakups.add(
            Breakup(crew.token, crew.members, now, by, waiting, set(survivors), explained, set(blamed or ()))
        )
        actions = self._close_store(crew)
        return [*actions, self.report(why, 0.0)] if crew.state in IN_USE else actions

    def lose(self, worker: WorkerId, why: str, now: float) -> list[Action]:
        """Remove a worker that is gone, and end its crew."""
        slot = self.slots.pop(worker)
        self.distrust.forget(worker)
        crew = slot.crew
        actions = self.end(crew, why, now, explained=True) if crew is not None else []
        self.breakups.lost(worker)
        return [*actions, Replan(why)]

    def kill(self, worker: WorkerId, why: str, now: float) -> list[Action]:
        return [Kill(worker, why), *self.lose(worker, f"{worker} was killed, because it {why}", now)]

    def stand_alone(self, orders: list[tuple[WorkerId, GroupToken]]) -> list[Action]:
        """Send Disband to members of ended crews that have no new one."""
        actions: list[Action] = []
        for worker, token in orders:
            self.slots[worker].disturbed_at = None
            actions.append(self._disband(worker, token))
        return actions

    def report(self, reason: str, seconds: float) -> ReportCrews:
        return ReportCrews(Crewed(epoch=self.epoch, crews=self.in_use, reason=reason, seconds=seconds))

    def _close_store(self, crew: Crew) -> list[Action]:
        closing: list[Action] = [CloseStore(crew.token)] if crew.has_store else []
        crew.has_store = False
        return closing

    def _disband(self, worker: WorkerId, token: GroupToken) -> Send:
        slot = self.slots[worker]
        if slot.crew is None or slot.crew.token != token:
            slot.ended_tokens.add(token)
        return Send(worker, Disband(token=token))
