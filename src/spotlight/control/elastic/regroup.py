"""How the workers of one node come to be crews and cease to: the only owner of tokens, driven by the node's agent.

Invariants, checked at every event of tests/storm/test_regroup_storm.py: a worker has at most one live token; a token
that was closed never comes back; who is alive ends up in a serving crew or alone; nobody who is gone is told anything.

    wish --> PREPARING --all agree--> CONNECTING --all formed--> SERVING --wish, notice--> DRAINING
                 |                         |                        |                          |
                 | problem, loss,          | error, loss,           | error, loss,             |  error, loss, time
                 | notice, time            | notice, time           | deadline                 |-----> BROKEN
                 v                         `----> BROKEN <----------'                          | all out at
              ROLLED BACK                           |                                          v a boundary
                 `-------------> ALONE <------------' all out, or killed                     ALONE

PREPARING and CONNECTING together are forming, at a new epoch. Standing alone is serving at degree 1 and needs no token.
What each state waits for, until when, and what happens then:

    PREPARING    all members' Prepared       boundary_s    rolled back; who is silent is kept apart for a while
    CONNECTING   all members' Formed         forming_s     broken; blame as below
    SERVING      ForwardDone of the leader   StepTimes     broken; blame as below; waits for nothing between forwards
    DRAINING     Disbanded of the leader     boundary_s    broken; the leader is killed
                 then of the followers       boundary_s    broken; the silent ones are killed
    BROKEN       Broke, Disbanded, or an answer to a newer Prepare: quiesce_s for who shows no sign of life, boundary_s
                 for who does; then blame as below, and again

Blame (`crew.suspects`) kills followers before the leader, and only as many as the silence needs. It can tell the hung
one from its victims because a group's own operations time out before the step deadline: victims say Broke, it does not.

After a break survivors hold still until they are told what next, so that a leader does not begin a slow step alone. The
machine asks for a layout with `Replan`; the `wish` that answers it turns into one order for each: `Prepare` of the next
token, which also ends the old one for who is told, or `Disband`. Without a wish, the next `tick` says `Disband`.

It relies on workers in this: a pipe keeps the order of words; `Prepared` says that nothing of an older token runs
there; every `Form` is answered, and so is every `Disband`, by `Disbanded` or `Broke` once nothing of its token runs,
group or no group; who is prepared holds still for boundary_s and forming_s together, or says Broke.

    >>> regroup = Regroup(NodeId("spot-1.3"), "/tmp/store", ElasticConfig())
    >>> regroup.joined(a, now) + regroup.joined(b, now)      # Replan: decide, then
    >>> regroup.wish(((a, b),), "two slots, one request", now)   # Send Prepare to both, a leads
    >>> regroup.heard(a, Prepared(...), now); regroup.heard(b, Prepared(...), now)   # OpenStore, Send Form to both
    >>> regroup.heard(a, Formed(...), now); regroup.heard(b, Formed(...), now)   # Report; serving
    >>> regroup.gone(b, "SIGKILL", now)                      # CloseStore, Report, Replan
    >>> regroup.wish(((a,),), "one slot", now)               # Send Disband to a: it goes on alone
"""

from math import inf

from spotlight.control.elastic.actions import Action, OpenStore, Refuse, Relay, Replan, Send, Word
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.elastic.crew_life import Crew, CrewState, Running, disagreement, suspects
from spotlight.control.elastic.distrust import Pair
from spotlight.control.elastic.formation import IN_USE, Formation, Layout, LiveWorker
from spotlight.control.elastic.step_times import StepTimes
from spotlight.core.crew_messages import Broke, Disbanded, Form, Formed, Forward, ForwardDone, GroupToken, Prepared
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import WeightsId

PROVEN_FORWARDS = 8
"""Forwards after which earlier failures of the members are forgiven; fewer than that prove nothing."""


class Regroup:
    """Every method takes what happened and when, and returns what to do, in order; nothing here waits or raises.

    `gone` may also be called for a worker that this machine killed. An id is never used again after its worker is gone.
    """

    def __init__(self, node: NodeId, store: str, config: ElasticConfig, lifeless_s: float = 1.0) -> None:
        """`lifeless_s`: two heartbeats, within which a process that lives is heard of."""
        self._store = store
        self._config = config
        self._formation = Formation(node, config, lifeless_s)
        self._times = StepTimes(config)
        self._wish: Layout = ()
        self._reason = ""
        self.refused = 0
        """Words with an old token or out of turn, so far."""

    # -- to read -------------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(sorted(self._formation.slots))

    @property
    def epoch(self) -> int:
        """Of the newest token."""
        return self._formation.epoch

    @property
    def crews(self) -> Layout:
        """Crews of two or more that serve, or drain; whoever is not named stands alone or is on the way."""
        return self._formation.in_use

    @property
    def layout(self) -> Layout:
        """Where everybody alive is, or is about to be: crews that form, serve or drain, then those alone."""
        crews = tuple(crew.members for crew in self._formation.led())
        placed = {worker for members in crews for worker in members}
        return crews + tuple((worker,) for worker in self.alive if worker not in placed)

    @property
    def is_settled(self) -> bool:
        """Nothing is under way: every crew serves and everybody else stands alone, told so."""
        serving = all(crew.state is CrewState.SERVING for crew in self._formation.crews.values())
        return serving and not self._formation.breakups

    def apart(self) -> tuple[Pair, ...]:
        """Pairs that a layout should not put into one crew just now, because they failed together."""
        return self._formation.distrust.apart()

    def token(self, worker: WorkerId) -> GroupToken | None:
        """The live one of this worker."""
        slot = self._formation.slots.get(worker)
        return slot.crew.token if slot is not None and slot.crew is not None else None

    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest; earlier calls do no harm."""
        times = [crew.deadline for crew in self._formation.crews.values()]
        times += [self._formation.breakups.next_deadline(), self._formation.distrust.next_lapse()]
        soonest = min(times)
        return None if soonest == inf else soonest

    # -- what happens to workers ---------------------------------------------------------------------------------------

    def joined(self, worker: WorkerId, now: float) -> list[Action]:
        """It is up and stands alone."""
        if worker in self._formation.slots:
            return []
        self._formation.slots[worker] = LiveWorker(heard_at=now)
        return [Replan(f"{worker} joined")]

    def gone(self, worker: WorkerId, why: str, now: float) -> list[Action]:
        """Its process ended."""
        if worker not in self._formation.slots:
            return []
        return self._settle(self._formation.lose(worker, f"{worker} is gone: {why}", now), now)

    def noticed(self, worker: WorkerId, deadline: float, now: float) -> list[Action]:
        """It will go: its crew ends at the next step boundary, and it is in none from then on."""
        slot = self._formation.slots.get(worker)
        if slot is None:
            return []
        slot.notice = deadline
        why = f"{worker} goes in {max(0.0, deadline - now):.3g} s"
        crew = slot.crew
        actions: list[Action] = []
        if crew is not None and crew.state is CrewState.SERVING:
            actions = self._formation.drain(crew, why, now)
        elif crew is not None and crew.state not in IN_USE:
            actions = self._formation.end(crew, why, now, explained=True)
        return self._settle([*actions, Replan(why)], now)

    def held(self, worker: WorkerId, weights: WeightsId, now: float) -> list[Action]:
        """It applied these weights, so that it may now belong where it did not."""
        if worker not in self._formation.slots:
            return []
        self.seen(worker, now)
        return [Replan(f"{worker} holds {weights}")]

    def seen(self, worker: WorkerId, now: float) -> None:
        """A heartbeat or any other sign of life; it tells a stopped process from one that waits for it."""
        slot = self._formation.slots.get(worker)
        if slot is not None:
            slot.heard_at = now

    # -- what is decided -----------------------------------------------------------------------------------------------

    def wish(self, layout: Layout, reason: str, now: float) -> list[Action]:
        """From now on this is wanted; crews with members that are gone, noticed or kept apart are passed over."""
        self._wish = tuple(members for members in layout if len(members) > 1)
        self._reason = reason
        actions = self._pursue(now)
        return actions + self._formation.stand_alone(self._formation.breakups.take_orders(None))

    def tick(self, now: float) -> list[Action]:
        """Ends the waits that are over."""
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
        """Towards the wish: drains crews that it does not name, forms those whose members are all free."""
        actions: list[Action] = []
        for _, crew in sorted(self._formation.crews.items()):
            if crew.state is CrewState.SERVING and crew.members not in self._wish:
                actions += self._formation.drain(crew, self._reason, now)
        for members in self._wish:
            if self._formation.may_form(members):
                actions += self._formation.prepare(members, self._reason, now)
        return actions

    def _settle(self, actions: list[Action], now: float) -> list[Action]:
        """After whatever happened: judges what broke without a death, goes on with the wish, asks for one layout."""
        whys = [action.why for action in actions if isinstance(action, Replan)]
        for breakup in self._formation.breakups.inexplicable():
            self._formation.distrust.failed(breakup.members, breakup.blamed, now)
            whys.append(f"crew {breakup.token} failed, though all its members live")
        others = [action for action in actions if not isinstance(action, Replan)]
        replan = [Replan("; ".join(whys))] if whys else []
        return [*others, *self._pursue(now), *replan]

    # -- what workers say ------------------------------------------------------------------------------------------

    def heard(self, worker: WorkerId, word: Word, now: float) -> list[Action]:
        """A word of a crew; one that is not of this worker's live crew, or out of turn, is refused."""
        slot = self._formation.slots.get(worker)
        if slot is None:
            return self._refuse(worker, word, "it is gone")
        if isinstance(word, Prepared):
            self._formation.breakups.superseded(worker, word.token)
        crew = slot.crew
        # An old word is no sign of life: it may have lain in a pipe, or be a zombie's.
        if crew is not None and word.token == crew.token:
            slot.heard_at = now
            return self._settle(self._member_said(crew, worker, word, now), now)
        if isinstance(word, Broke | Disbanded) and word.token in slot.farewells:
            slot.farewells.discard(word.token)
            self._formation.breakups.left(worker, word.token, word.waited_for if isinstance(word, Broke) else None)
            return self._settle([], now)
        return self._refuse(worker, word, f"its live token is {crew.token if crew is not None else 'none'}")

    def _member_said(self, crew: Crew, worker: WorkerId, word: Word, now: float) -> list[Action]:
        in_use = crew.state in IN_USE
        match word:
            case Prepared() if crew.state is CrewState.PREPARING and worker not in crew.answers:
                return self._prepared(crew, worker, word, now)
            case Formed() if crew.state is CrewState.CONNECTING:
                return self._formed(crew, worker, now)
            case Forward() if worker == crew.leader and crew.running is None and word.number == crew.forwards:
                if in_use:
                    return self._announced(crew, word, now)
                if worker in crew.formed:
                    crew.early = word
                    return []
            case ForwardDone() if in_use and word.number < crew.forwards:
                self._forward_done(crew, worker, word, now)
                return []
            case Broke():
                crew.left.add(worker)
                blamed = {word.waited_for} if word.waited_for is not None else set()
                return self._formation.fail(crew, f"{worker}: {word.problem}", blamed, now)
            case Disbanded():
                return self._disbanded(crew, worker, now)
        return self._refuse(worker, word, f"crew {crew.token} is {crew.state}, so this is out of turn")

    def _prepared(self, crew: Crew, worker: WorkerId, word: Prepared, now: float) -> list[Action]:
        self._formation.slots[worker].farewells.clear()
        if word.problem:
            return self._formation.fail(crew, f"{worker} cannot join: {word.problem}", {worker}, now)
        crew.answers[worker] = word
        if crew.silent():
            return []
        differs = disagreement(crew.members, crew.answers)
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
            self._formation.slots[member].disturbed = None
        actions: list[Action] = [self._formation.report(crew.reason, now - crew.began)]
        return actions + self._announced(crew, crew.early, now) if crew.early is not None else actions

    def _announced(self, crew: Crew, word: Forward, now: float) -> list[Action]:
        crew.running = Running(word, now)
        crew.forwards += 1
        crew.wait(now, now + self._times.allowed_s(word, len(crew.members)))
        return [Relay(crew.followers, word)]

    def _forward_done(self, crew: Crew, worker: WorkerId, word: ForwardDone, now: float) -> None:
        """The leader's word ends it; a follower's only clears that follower, and may be late."""
        running = crew.running
        if running is None or running.forward.number != word.number:
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
        """Asked to, or of its own accord: a leader ends the crew in order either way, a follower breaks it."""
        leaves = worker == crew.leader and crew.state in IN_USE
        follows = crew.leader in crew.left
        crew.left.add(worker)
        if not leaves and not follows:
            return self._formation.fail(crew, f"{worker} left without being asked", {worker}, now)
        self._formation.slots[worker].crew = None
        if leaves:
            return self._formation.drain_followers(crew, now)
        if not crew.silent():
            del self._formation.crews[crew.token]
        return []

    def _refuse(self, worker: WorkerId, word: Word, why: str) -> list[Action]:
        self.refused += 1
        return [Refuse(worker, word, why)]
