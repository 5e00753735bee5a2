"""Regroup (elastic sequence parallelism): forms and ends the crews of one node, driven by the node's agent.

It alone owns the tokens. Invariants, checked at every event of tests/storm/test_regroup_storm.py: a worker has at most
one live token; a closed token never comes back; a live worker ends up in a serving crew or alone; a worker that is
gone receives no message.

    wish --> PREPARING --all agree--> CONNECTING --all formed--> SERVING --wish, notice--> DRAINING
                 |                         |                        |                          |
                 | problem, loss,          | error, loss,           | error, loss,             |  error, loss, time
                 | notice, time            | notice, time           | deadline                 |-----> BROKEN
                 v                         `----> BROKEN <----------'                          | all left at
              ROLLED BACK                           |                                          v a boundary
                 `-------------> ALONE <------------' all left, or killed                    ALONE

PREPARING and CONNECTING together are forming, at a new epoch. A worker alone serves at degree 1 and needs no token.
What each state waits for, its timeout, and what follows a timeout:

    PREPARING    all members' Prepared       boundary_s    rolled back; silent members are kept apart for a while
    CONNECTING   all members' Formed         forming_s     broken; blame as below
    SERVING      ForwardDone of the leader   StepTimes     broken; blame as below; waits for nothing between forwards
    DRAINING     Disbanded of the leader     boundary_s    broken; the leader is killed
                 then of the followers       boundary_s    broken; silent followers are killed
    BROKEN       Broke, Disbanded, or a reply to a newer Prepare: quiesce_s for members without a sign of life,
                 boundary_s for the others; then blame as below, and again

Blame (`crew_life.suspects`) kills followers before the leader, and only as far as the silence requires. It can
distinguish the hung member from its victims because a group's own operations time out before the step deadline:
victims send Broke, the hung member does not.

After a break survivors wait for their next order, so that a leader does not begin a slow step alone. The machine
requests a layout with `Replan`; the `wish` that replies becomes one order for each survivor: `Prepare` with the next
token, which also ends the old one for its receiver, or `Disband`. Without a wish, the next `tick` sends `Disband`.

It relies on workers in this: a pipe keeps the order of messages; `Prepared` means that nothing of an older token runs
there; every `Form` has a reply, and so has every `Disband`: `Disbanded` or `Broke` once nothing of its token runs,
group or no group; a prepared worker waits for boundary_s and forming_s together, or sends Broke.

    >>> regroup = Regroup(NodeId("spot-1.3"), "/tmp/store", ElasticConfig())
    >>> regroup.joined(a, now) + regroup.joined(b, now)      # Replan: decide, then
    >>> regroup.wish(((a, b),), "two slots, one request", now)   # Send Prepare to both, a leads
    >>> regroup.receive(a, Prepared(...), now); regroup.receive(b, Prepared(...), now)   # OpenStore, Send Form to both
    >>> regroup.receive(a, Formed(...), now); regroup.receive(b, Formed(...), now)   # Report; serving
    >>> regroup.gone(b, "SIGKILL", now)                      # CloseStore, Report, Replan
    >>> regroup.wish(((a,),), "one slot", now)               # Send Disband to a: it serves alone
"""

from math import inf

from spotlight.control.elastic.actions import Action, OpenStore, Refuse, Relay, Replan, Send, WorkerMessage
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.crew_life import Crew, CrewState, Running, disagreement, suspects
from spotlight.control.elastic.distrust import Pair
from spotlight.control.elastic.formation import IN_USE, Formation, FormationWorker, Layout
from spotlight.control.elastic.step_times import StepTimes
from spotlight.core.crew_messages import Broke, Disbanded, Form, Formed, Forward, ForwardDone, GroupToken, Prepared
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import WeightsId

PROVEN_FORWARDS = 8
"""Forwards after which earlier failures of the members are forgotten; fewer prove nothing."""


class Regroup:
    """The regroup machine: every method takes an event and its time and returns actions; none waits or raises.

    `gone` may also be called for a worker that this machine killed. A worker's id is never used again after it is gone.
    """

    def __init__(self, node: NodeId, store: str, config: ElasticConfig, lifeless_s: float = 1.0) -> None:
        """`lifeless_s`: two heartbeats, within which a live process sends a sign of life."""
        self._store = store
        self._config = config
        self._formation = Formation(node, config, lifeless_s)
        self._times = StepTimes(config)
        self._wish: Layout = ()
        self._reason = ""
        self.refused = 0
        """Messages with an old token or in the wrong state so far."""

    # -- to read -------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self._formation.slots))

    @property
    def epoch(self) -> int:
        """Epoch of the newest token."""
        return self._formation.epoch

    @property
    def crews(self) -> Layout:
        """Crews of two or more that serve or drain; workers not listed are alone or changing."""
        return self._formation.in_use

    @property
    def layout(self) -> Layout:
        """Current or coming place of every live worker: crews that form, serve or drain, then those alone."""
        crews = tuple(crew.members for crew in self._formation.led())
        placed = {worker for members in crews for worker in members}
        return crews + tuple((worker,) for worker in self.alive if worker not in placed)

    @property
    def is_settled(self) -> bool:
        """Whether every crew serves, and every other worker is alone and has its order."""
        serving = all(crew.state is CrewState.SERVING for crew in self._formation.crews.values())
        return serving and not self._formation.breakups

    def apart(self) -> tuple[Pair, ...]:
        """Pairs that a layout should not put into one crew now, because they failed together."""
        return self._formation.distrust.apart()

    def token(self, worker: WorkerId) -> GroupToken | None:
        """The live token of this worker."""
        slot = self._formation.slots.get(worker)
        return slot.crew.token if slot is not None and slot.crew is not None else None

    def next_deadline(self) -> float | None:
        """Latest time of the next `tick`; earlier calls do no harm."""
        times = [crew.deadline for crew in self._formation.crews.values()]
        times += [self._formation.breakups.next_deadline(), self._formation.distrust.next_lapse()]
        soonest = min(times)
        return None if soonest == inf else soonest

    # -- events of workers ---------------------------------------------------------------------------------------------

    def joined(self, worker: WorkerId, now: float) -> list[Action]:
        """Add a worker; it is alone at first."""
        if worker in self._formation.slots:
            return []
        self._formation.slots[worker] = FormationWorker(seen_at=now)
        return [Replan(f"{worker} joined")]

    def gone(self, worker: WorkerId, why: str, now: float) -> list[Action]:
        """Remove a worker whose process ended."""
        if worker not in self._formation.slots:
            return []
        return self._settle(self._formation.lose(worker, f"{worker} is gone: {why}", now), now)

    def noticed(self, worker: WorkerId, deadline: float | None, now: float) -> list[Action]:
        """Apply a notice: the worker's crew ends at the next boundary, and it joins no other. None withdraws it."""
        slot = self._formation.slots.get(worker)
        if slot is None or slot.notice == deadline:
            return []
        slot.notice = deadline
        if deadline is None:
            return [Replan(f"the notice of {worker} is withdrawn")]
        why = f"{worker} goes in {max(0.0, deadline - now):.3g} s"
        crew = slot.crew
        actions: list[Action] = []
        if crew is not None and crew.state is CrewState.SERVING:
            actions = self._formation.drain(crew, why, now)
        elif crew is not None and crew.state not in IN_USE:
            actions = self._formation.end(crew, why, now, explained=True)
        return self._settle([*actions, Replan(why)], now)

    def held(self, worker: WorkerId, weights: WeightsId, now: float) -> list[Action]:
        """Record that the worker applied these weights, which may allow other crews."""
        if worker not in self._formation.slots:
            return []
        self.seen(worker, now)
        return [Replan(f"{worker} holds {weights}")]

    def seen(self, worker: WorkerId, now: float) -> None:
        """Record a heartbeat or other sign of life; it distinguishes a stopped process from one that waits for it."""
        slot = self._formation.slots.get(worker)
        if slot is not None:
            slot.seen_at = now

    # -- decisions -----------------------------------------------------------------------------------------------------

    def wish(self, layout: Layout, reason: str, now: float) -> list[Action]:
        """Pursue this layout; crews with members that are gone, noticed or kept apart are skipped."""
        self._wish = tuple(members for members in layout if len(members) > 1)
        self._reason = reason
        actions = self._pursue(now)
        return actions + self._formation.stand_alone(self._formation.breakups.take_orders(None))

    def tick(self, now: float) -> list[Action]:
        """End the waits whose deadline has passed."""
        formation = self._formation
        actions: list[Action] = []
        for token in sorted(formation.crews):
            crew = formation.crews.get(token)
            if crew is not None and crew.deadline <= now:
                actions += self._overdue(crew, now)
        for worker, why in formation.breakups.overdue(
            now, self._config.quiesce_s, self._config.boundary_s, formation.lifeless(now)
        ):
            if worker in formation.slots:
                actions += formation.kill(worker, why, now)
        for one, other in formation.distrust.lapse(now):
            actions.append(Replan(f"{one} and {other} may be tried together again"))
        return self._settle(actions + formation.stand_alone(formation.breakups.take_orders(now)), now)

    def _overdue(self, crew: Crew, now: float) -> list[Action]:
        silent = crew.silent()
        late = f"within {now - crew.waits_since:.3g} s"
        names = ", ".join(silent)
        if crew.state is CrewState.PREPARING:
            return self._formation.fail(crew, f"{names} reached no step boundary {late}", set(silent), now)
        if crew.state is CrewState.CONNECTING:
            return self._formation.fail(crew, f"{names} did not connect crew {crew.token} {late}", set(silent), now)
        if crew.running is None:
            what = f"did not leave crew {crew.token} {late}"
        else:
            what = f"did not end forward {crew.running.forward.number} of crew {crew.token} {late}"
        actions: list[Action] = []
        for worker in suspects(silent, crew.leader, (), self._formation.lifeless(now)):
            actions += self._formation.kill(worker, what, now)
        return actions

    def _pursue(self, now: float) -> list[Action]:
        """Approach the wish: drain crews that it does not contain, form those whose members are all free."""
        actions: list[Action] = []
        for _, crew in sorted(self._formation.crews.items()):
            if crew.state is CrewState.SERVING and crew.members not in self._wish:
                actions += self._formation.drain(crew, self._reason, now)
        for members in self._wish:
            if self._formation.may_form(members):
                actions += self._formation.prepare(members, self._reason, now)
        return actions

    def _settle(self, actions: list[Action], now: float) -> list[Action]:
        """Finish an event: judge what broke without a death, pursue the wish, request one layout."""
        whys = [action.why for action in actions if isinstance(action, Replan)]
        for breakup in self._formation.breakups.inexplicable():
            self._formation.distrust.failed(breakup.members, breakup.blamed, now)
            whys.append(f"crew {breakup.token} failed, though all its members live")
        others = [action for action in actions if not isinstance(action, Replan)]
        replan = [Replan("; ".join(whys))] if whys else []
        return [*others, *self._pursue(now), *replan]

    # -- messages of workers -------------------------------------------------------------------------------------------

    def receive(self, worker: WorkerId, message: WorkerMessage, now: float) -> list[Action]:
        """Handle a message; one that is not of this worker's live crew, or does not fit its state, is refused."""
        slot = self._formation.slots.get(worker)
        if slot is None:
            return self._refuse(worker, message, "it is gone")
        if isinstance(message, Prepared):
            self._formation.breakups.superseded(worker, message.token)
        crew = slot.crew
        # An old message is no sign of life: it may have waited in a pipe, or come from a zombie.
        if crew is not None and message.token == crew.token:
            slot.seen_at = now
            return self._settle(self._member_message(crew, worker, message, now), now)
        if isinstance(message, Broke | Disbanded) and message.token in slot.ended_tokens:
            slot.ended_tokens.discard(message.token)
            self._formation.breakups.left(
                worker, message.token, message.waited_for if isinstance(message, Broke) else None
            )
            return self._settle([], now)
        return self._refuse(worker, message, f"its live token is {crew.token if crew is not None else 'none'}")

    def _member_message(self, crew: Crew, worker: WorkerId, message: WorkerMessage, now: float) -> list[Action]:
        in_use = crew.state in IN_USE
        match message:
            case Prepared() if crew.state is CrewState.PREPARING and worker not in crew.replies:
                return self._prepared(crew, worker, message, now)
            case Formed() if crew.state is CrewState.CONNECTING:
                return self._formed(crew, worker, now)
            case Forward() if worker == crew.leader and crew.running is None and message.number == crew.forwards:
                if in_use:
                    return self._announced(crew, message, now)
                if worker in crew.formed:
                    crew.early = message
                    return []
            case ForwardDone() if in_use and message.number < crew.forwards:
                self._forward_done(crew, worker, message, now)
                return []
            case Broke():
                crew.left.add(worker)
                blamed = {message.waited_for} if message.waited_for is not None else set()
                return self._formation.fail(crew, f"{worker}: {message.problem}", blamed, now)
            case Disbanded():
                return self._disbanded(crew, worker, now)
        return self._refuse(worker, message, f"crew {crew.token} is {crew.state}, so this message does not fit")

    def _prepared(self, crew: Crew, worker: WorkerId, message: Prepared, now: float) -> list[Action]:
        self._formation.slots[worker].ended_tokens.clear()
        if message.problem:
            return self._formation.fail(crew, f"{worker} cannot join: {message.problem}", {worker}, now)
        crew.replies[worker] = message
        if crew.silent():
            return []
        differs = disagreement(crew.members, crew.replies)
        if differs is not None:
            return self._formation.fail(crew, differs[0], {differs[1]}, now)
        crew.state = CrewState.CONNECTING
        crew.has_store = True
        crew.wait(now, now + self._config.forming_s)
        form = Form(token=crew.token, members=crew.members, store=self._store)
        return [OpenStore(crew.token), *(Send(member, form) for member in crew.members)]

    def _formed(self, crew: Crew, worker: WorkerId, now: float) -> list[Action]:
        crew.formed.add(worker)
        if crew.silent():
            return []
        crew.state = CrewState.SERVING
        crew.rest()
        for member in crew.members:
            self._formation.slots[member].disturbed_at = None
        actions: list[Action] = [self._formation.report(crew.reason, now - crew.began)]
        return actions + self._announced(crew, crew.early, now) if crew.early is not None else actions

    def _announced(self, crew: Crew, message: Forward, now: float) -> list[Action]:
        crew.running = Running(message, now)
        crew.forwards += 1
        crew.wait(now, now + self._times.allowed_s(message, len(crew.members)))
        return [Relay(crew.followers, message)]

    def _forward_done(self, crew: Crew, worker: WorkerId, message: ForwardDone, now: float) -> None:
        """The leader's message ends the forward; a follower's only clears that follower, and may be late."""
        running = crew.running
        if running is None or running.forward.number != message.number:
            return
        running.done.add(worker)
        if worker != crew.leader:
            return
        self._times.took(running.forward, len(crew.members), now - running.began)
        crew.running = None
        if crew.forwards == PROVEN_FORWARDS:
            self._formation.distrust.proved(crew.members)
        if crew.state is CrewState.DRAINING:
            crew.wait(now, now + self._config.boundary_s)
        else:
            crew.rest()

    def _disbanded(self, crew: Crew, worker: WorkerId, now: float) -> list[Action]:
        """A member left, by order or not: a leader ends the crew in order either way, a follower breaks it."""
        leaves = worker == crew.leader and crew.state in IN_USE
        follows = crew.leader in crew.left
        crew.left.add(worker)
        if not leaves and not follows:
            return self._formation.fail(crew, f"{worker} left without an order", {worker}, now)
        self._formation.slots[worker].crew = None
        if leaves:
            return self._formation.drain_followers(crew, now)
        if not crew.silent():
            del self._formation.crews[crew.token]
        return []

    def _refuse(self, worker: WorkerId, message: WorkerMessage, why: str) -> list[Action]:
        self.refused += 1
        return [Refuse(worker, message, why)]
