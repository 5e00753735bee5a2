"""The pull scheduler: who gets what next.

The ledger owns states, attempts and fences; the scheduler owns the order of service and what it knows of workers. It
decides and leases; the caller speaks to workers. Pure and synchronous: time comes in, decisions come out.

Invariants (tests/unit/test_scheduler.py, tests/property/test_scheduler_property.py): every request that was added is
waiting or held until it is accepted or dropped; one held request has one holder, the ledger's; a worker is given only
what it has the weights for, can finish before its deadline, and should take by its share; rollouts and evaluations are
never kept waiting by previews. No event costs more than O(log n) in the number of workers, but for the search for
stragglers, which is periodic, and for what a lost worker held.

    scheduler.join(worker, SlotClass.SPOT, rows=8, now=0.0)
    scheduler.holds(worker, [weights])
    scheduler.add(requests)                          # issued in the ledger before
    scheduler.pull(worker, Pull(free_rows=8), now=0.0)   # stands until it is answered
    scheduler.assign(now=0.0)                        # [Assignment(worker, weights, leases)]: leased in the ledger
    scheduler.done(worker, request, now=2.0)         # after ledger.accept
"""

from collections.abc import Collection, Iterable, Sequence
from math import inf

from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import notices, prediction, stragglers
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.booking import Booking, Turn, by_number
from spotlight.control.scheduler.prediction import Fetching
from spotlight.control.scheduler.pulls import Assignment, Recalled, Rounds
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PullQueue, Standing, WorkerRecord
from spotlight.core.events import ReleaseReason
from spotlight.core.messages import Progress, Pull
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Request, RequestId, SlotClass, WeightsId, Work


class Scheduler:
    """Workers ask, work waits, `assign` brings them together."""

    def __init__(self, ledger: Ledger, settings: SchedulerSettings | None = None, turn: Turn = by_number) -> None:
        self._ledger = ledger
        self._settings = settings or SchedulerSettings()
        self._workers: dict[WorkerId, WorkerRecord] = {}
        self._balance = Balance(self._settings.saturating_rows)
        self._pulls = PullQueue()
        self._booking = Booking(ledger, self._balance, self._pulls, turn, self._settings.audits_with_groups)
        self._rounds = Rounds(self._settings, self._booking, self._balance, self._pulls)
        self._watch = stragglers.Watch(self._settings)
        self._next_search = 0.0
        self._fewest_rows = 1 << 30
        self._most_rows = 0
        """That any worker has had room for."""

    # -- what workers say ----------------------------------------------------------------------------------------------

    def join(self, worker: WorkerId, slot_class: SlotClass, rows: int, now: float) -> None:
        """A worker is there; one that is known already (its greeting came twice) is only heard of."""
        known = self._heard(worker, now)
        if known is None:
            known = self._workers[worker] = WorkerRecord(worker, slot_class, rows, heard_at=now)
            self._watch.worker(known)
            self._fewest_rows = min(self._fewest_rows, rows)
            self._most_rows = max(self._most_rows, rows)

    def holds(self, worker: WorkerId, weights: Collection[WeightsId]) -> None:
        """Exactly these are resident and verified; work is given for these only."""
        known = self._workers.get(worker)
        if known is None:
            return
        before = known.backlogs
        self._balance.hold(known, [self._booking.backlog(each) for each in sorted(weights)])
        for backlog in before:
            self._booking.tidy(backlog)
        self._pulls.wake(known)

    def pull(self, worker: WorkerId, pull: Pull, now: float, late_s: float = 0.0) -> None:
        """Replaces the worker's earlier pull and stands until an assignment answers it.

        A worker pulls again after each assignment if it has room left, and takes its pull back with 0 rows. A pull that
        crossed an assignment on its way (`pull.answered` is behind) offers the same rows again and is ignored. `late_s`
        is the time until the worker could begin.
        """
        known = self._workers.get(worker)
        if known is None:
            return
        known.heard_at = now
        if pull.answered is not None and pull.answered < known.assignments:
            return
        known.free_rows = min(pull.free_rows, known.rows)
        known.late_s = late_s
        self._balance.measure(known, pull.row_steps_per_s)
        self._balance.recount(known)
        if known.free_rows > 0:
            self._pulls.ask(known)
        else:
            self._pulls.forget(known)

    def heard(self, worker: WorkerId, progress: Sequence[Progress], now: float) -> None:
        """A heartbeat, and how far each attempt is."""
        known = self._heard(worker, now)
        if known is None:
            return
        for each in progress:
            ticket = self._booking.live(worker, each.request, each.attempt)
            if ticket is not None:
                self._booking.advance(ticket, each.step, now)
        if known.lags:
            stall_s = self._settings.stall_s
            known.lags = any(ticket.named_at - ticket.moved_at > stall_s for ticket in known.leases.values())
        if known.measured is None:
            self._balance.measure(known, None)
        self._pulls.wake(known)

    def committed(self, worker: WorkerId, request: RequestId, attempt: int, step: int, now: float) -> bool:
        """The flight is safe at this step; False: fenced, the attempt is not the live one."""
        self._heard(worker, now)
        ticket = self._booking.live(worker, request, attempt)
        if ticket is None:
            return False
        self._booking.advance(ticket, step, now)
        ticket.step = max(ticket.step, min(step, ticket.steps))
        return True

    def hand_back(
        self,
        worker: WorkerId,
        request: RequestId,
        attempt: int,
        step: int,
        now: float,
        reason: ReleaseReason | None = None,
    ) -> bool:
        """The attempt ends at this step and its request is first in line again; False: fenced.

        It goes on from its newest commit, this one or an earlier. `reason` is found out unless given; an attempt that
        FAILED starts over from `step`, whatever was committed, since that may be what made it fail.
        """
        self._heard(worker, now)
        ticket = self._booking.live(worker, request, attempt)
        if ticket is None:
            return False
        self._booking.advance(ticket, step, now)
        ticket.step = step if reason is ReleaseReason.FAILED else max(ticket.step, min(step, ticket.steps))
        default = ReleaseReason.RECALLED if ticket.is_recalled else ReleaseReason.HANDED_BACK
        self._booking.release(ticket, reason or default)
        return True

    def done(self, worker: WorkerId, request: RequestId, now: float) -> None:
        """The ledger took or refused a result of this worker: follow it.

        An older attempt's refusal changes nothing; a live one that was refused for its weights starts over.
        """
        known = self._workers.get(worker)
        if known is not None:
            known.heard_at = now
        self._booking.follow(request)

    def warn(self, worker: WorkerId, kind: NoticeKind, deadline: float, now: float) -> None:
        """A preemption notice; ask `must_hand_back` next. It stays in force until the worker is lost."""
        known = self._heard(worker, now)
        if known is not None:
            notices.warn(known, kind, deadline)
            self._balance.recount(known)
            self._pulls.wake_all()

    def drain(self, worker: WorkerId) -> None:
        """Nothing more for this worker; what it holds comes back by `hand_back`."""
        known = self._workers.get(worker)
        if known is not None:
            known.standing = Standing.DRAINING
            self._balance.recount(known)
            self._pulls.wake_all()

    def lose(self, worker: WorkerId, reason: ReleaseReason, now: float) -> list[RequestId]:
        """The worker is gone, or fenced: its leases end and go on elsewhere from their last commits."""
        known = self._workers.pop(worker, None)
        if known is None:
            return []
        held = sorted(known.leases.values(), key=lambda ticket: ticket.key)
        for ticket in held:
            self._booking.release(ticket, reason)
        self._pulls.forget(known)
        before = known.backlogs
        self._balance.remove(known)
        for backlog in before:
            self._booking.tidy(backlog)
        self._pulls.wake_all()
        return [ticket.id for ticket in held]

    # -- work ----------------------------------------------------------------------------------------------------------

    def add(self, requests: Iterable[Request]) -> None:
        """Work that the ledger has queued: just issued, reopened, or left over by a restart."""
        for request in requests:
            self._booking.add(request)
        self._pulls.wake_all()

    def cancel(self, work: Work) -> list[WorkerId]:
        """Unfinished requests of this kind are dropped; returns who holds some, to be told to discard them."""
        holders = [self._booking.dismiss(request) for request in self._ledger.cancel(work)]
        return sorted({holder for holder in holders if holder is not None})

    def drop(self, request: RequestId, reason: str) -> WorkerId | None:
        """Give one request up; returns who holds it."""
        self._ledger.drop(request, reason)
        return self._booking.dismiss(request)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> list[Assignment]:
        """Serve those who ask, the fastest first: fair shares to all, then what whole rows left over, a row each."""
        if not self._booking.waiting or not self._pulls.turns:
            return []
        return self._rounds.serve(now)

    def recalls(self, now: float) -> list[Recalled]:
        """Stragglers' requests that somebody idle would finish clearly sooner; each attempt is asked for once."""
        if now < self._next_search or not self._pulls:
            return []
        self._next_search = now + self._settings.recall_every_s * (1 + len(self._workers) / 1000)
        known = self._fewest_rows, self._most_rows, self._balance.slowest
        busy = stragglers.suspects(self._workers.values(), self._booking.backlogs(), *known, self._settings)
        if not busy:
            return []
        found: dict[WorkerId, list[RequestId]] = {}
        for ticket in stragglers.find(busy, self._pulls, self._settings):
            if ticket.holder is not None:
                ticket.is_recalled = True
                self._watch.recall(ticket, ticket.holder, now)
                found.setdefault(ticket.holder.id, []).append(ticket.id)
        return [Recalled(worker, tuple(found[worker])) for worker in sorted(found)]

    def silent(self, now: float) -> list[WorkerId]:
        """Workers that said nothing for too long, or ignored a recall; the caller calls `lose(SILENT)` first of all."""
        return sorted({worker.id for worker in self._watch.due(now, self._workers)})

    def must_hand_back(self, worker: WorkerId, now: float) -> list[RequestId]:
        """What the worker holds and cannot finish before it goes; worth asking at each of its heartbeats."""
        known = self._workers.get(worker)
        return [ticket.id for ticket in notices.too_late(known, now, self._settings)] if known else []

    # -- reads ---------------------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerId]:
        return sorted(self._workers)

    def speed(self, worker: WorkerId) -> float:
        """Row-steps per second: measured, or as good as the median of the others."""
        return self._workers[worker].speed

    def measured_speed(self, worker: WorkerId) -> float | None:
        """The same, if it was measured."""
        return self._workers[worker].measured

    def step_s(self, worker: WorkerId) -> float:
        """Seconds of one step of a full batch."""
        known = self._workers[worker]
        return known.step_s(known.rows, self._settings.saturating_rows)

    def serves(self, worker: WorkerId) -> bool:
        """Whether it may be given anything that waits."""
        return self._workers[worker].standing is Standing.SERVING

    def is_engaged(self, worker: WorkerId) -> bool:
        """Whether it holds a lease or asks for one; nobody can count on who does neither."""
        known = self._workers[worker]
        return bool(known.leases) or known.free_rows > 0

    def asks(self, worker: WorkerId) -> bool:
        """Whether its pull stands."""
        return self._workers[worker].free_rows > 0

    def seconds_until(
        self, groups: Iterable[Iterable[RequestId]], count: int, team: Iterable[WorkerId], now: float,
        fetching: Fetching,
    ) -> float:  # fmt: skip
        """Until so many groups are finished, if the team takes up what nobody holds; infinite where nobody can tell."""
        tickets = [self._booking.unfinished(group) for group in groups]
        return prediction.seconds_until(tickets, count, self._known(team), self._settings, now, fetching)

    def seconds_of_exact_work(self, team: Iterable[WorkerId], fetching: Fetching) -> float:
        """That the team takes for all that is not finished, previews aside; infinite where nobody can tell."""
        everybody, backlogs = self._workers.values(), self._booking.backlogs()
        return prediction.seconds_of_exact_work(everybody, backlogs, self._known(team), fetching)

    def room(self, team: Iterable[WorkerId]) -> int:
        """Rows that the team can have under way."""
        return sum(worker.rows for worker in self._known(team))

    def is_waited_for(self) -> bool:
        """Whether there is a request that nobody holds."""
        return self._booking.waiting > 0

    def is_only_ahead(self, iteration: int) -> bool:
        """Whether all rollouts that wait are of later iterations."""
        queues = [backlog.queues[Work.ROLLOUT.rank] for backlog in self._booking.backlogs()]
        return all(queue.head().request.iteration > iteration for queue in queues if queue.count)

    def waiting(self, work: Work) -> int:
        """Requests of this kind that nobody holds."""
        return sum([backlog.queues[work.rank].count for backlog in self._booking.backlogs()])

    def unfinished(self, work: Work) -> int:
        """Requests of this kind that wait or are held."""
        return sum([backlog.unfinished[work.rank] for backlog in self._booking.backlogs()])

    @property
    def advances(self) -> int:
        """Times that a live attempt was reported at a later step than before."""
        return self._booking.advances

    @property
    def all_waiting(self) -> int:
        """Requests of any kind that nobody holds."""
        return self._booking.waiting

    def steps_under_way(self, work: Work) -> int:
        """Denoising steps that live attempts of this kind have done, as far as their workers have told."""
        held = [ticket for worker in self._workers.values() for ticket in worker.leases.values()]
        return sum(ticket.reached for ticket in held if ticket.request.work is work)

    def seconds_left(self, weights: WeightsId) -> float:
        """Until all that waits for these weights, and all that their team holds, is done; infinite without a team."""
        known = [backlog for backlog in self._booking.backlogs() if backlog.weights == weights]
        return known[0].left_s() if known else inf

    # -- inside --------------------------------------------------------------------------------------------------------

    def _known(self, workers: Iterable[WorkerId]) -> list[WorkerRecord]:
        return [self._workers[worker] for worker in workers]

    def _heard(self, worker: WorkerId, now: float) -> WorkerRecord | None:
        known = self._workers.get(worker)
        if known is not None:
            known.heard_at = now
        return known
