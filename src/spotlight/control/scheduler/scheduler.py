"""Pull scheduler with commits: matches worker pulls with waiting requests, each resumed from its last committed step.

The ledger owns states, attempts and fences; the scheduler owns the order of service and the worker records. It decides
and leases; the caller sends the messages. Pure and synchronous: time is an argument, decisions are return values.

Invariants (tests/unit/test_scheduler.py, tests/property/test_scheduler_property.py): every added request is waiting or
held until it is accepted or dropped; a held request has one holder, the ledger's. A worker receives only requests that
it holds the weights for, can finish before its deadline, and should take by its share; previews never delay rollouts
or evaluations. No event costs more than O(log n) in the number of workers, except the periodic search for stragglers
and the release of a lost worker's leases.

    scheduler.join(worker, SlotClass.SPOT, rows=8, now=0.0)
    scheduler.holds(worker, [weights])
    scheduler.add(requests)                          # already issued in the ledger
    scheduler.pull(worker, Pull(free_rows=8), now=0.0)   # stands until an assignment replies to it
    scheduler.assign(now=0.0)                        # [Assignment(worker, weights, leases)]: leased in the ledger
    scheduler.done(worker, request, now=2.0)         # after ledger.accept
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf

from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import notices, prediction, stragglers
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.booking import Booking, GroupOrder, by_number
from spotlight.control.scheduler.prediction import Fetching
from spotlight.control.scheduler.pulls import Assignment, Recalled, Rounds
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PullQueue, Standing, WorkerRecord, usable
from spotlight.core.messages import Progress, Pull
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, ReleaseReason, Request, RequestId, SlotClass, WeightsId, Work


class Scheduler:
    """Keeps pulls and waiting requests; `assign` matches them."""

    def __init__(
        self, ledger: Ledger, settings: SchedulerSettings | None = None, group_order: GroupOrder = by_number
    ) -> None:
        self._ledger = ledger
        self._settings = settings or SchedulerSettings()
        self._workers: dict[WorkerId, WorkerRecord] = {}
        self._balance = Balance()
        self._pulls = PullQueue()
        self._booking = Booking(ledger, self._balance, self._pulls, group_order, self._settings.audits_with_groups)
        self._rounds = Rounds(self._settings, self._booking, self._balance, self._pulls)
        self._watch = stragglers.Watch(self._settings)
        self._next_search = 0.0
        self._smallest_batch = inf
        """Fewest `saturating_rows` of any worker so far."""
        self._most_rows = 0
        """Largest `rows` of any worker so far."""

    # -- messages of workers -------------------------------------------------------------------------------------------

    def join(self, worker: WorkerId, slot_class: SlotClass, rows: int, now: float) -> None:
        """Add a worker; for a known one (its Hello arrived twice) only record the sign of life."""
        known = self._record_sign(worker, now)
        if known is None:
            known = self._workers[worker] = WorkerRecord(worker, slot_class, rows, seen_at=now)
            self._watch.worker(known)
            self._saturates(known, self._settings.saturating_rows)
            self._most_rows = max(self._most_rows, rows)

    def holds(self, worker: WorkerId, weights: Collection[WeightsId], awaited: Collection[WeightsId] = ()) -> None:
        """Record that exactly these weights are resident and verified; the worker receives work for these only.

        Of work for `awaited` ones, which it fetches, it has a share that the others leave.
        """
        known = self._workers.get(worker)
        if known is None:
            return
        before = known.shared
        held, coming = ([self._booking.backlog(each) for each in sorted(sets)] for sets in (weights, awaited))
        self._balance.hold(known, held, coming)
        for backlog in before:
            self._booking.tidy(backlog)
        if any(backlog.waits and not backlog.awaited for backlog in held):
            # Other workers may have left a row to this one.
            self._pulls.wake_all()
        self._pulls.wake(known)

    def is_current(self, worker: WorkerId, pull: Pull, now: float) -> bool:
        """Whether this pull, which has just arrived, may replace the worker's previous one.

        A pull that crossed an assignment in transit (`pull.answered` is behind) offers the same rows again. One that is
        not newer than the previous pull was repeated: the worker would not repeat the one that it replaced.
        """
        known = self._record_sign(worker, now)
        if known is None or (pull.answered is not None and pull.answered < known.assignments):
            return False
        if pull.number is not None:
            if pull.number <= known.pulls:
                return False
            known.pulls = pull.number
        return True

    def pull(self, worker: WorkerId, pull: Pull, now: float, late_s: float = 0.0, previews: bool = True) -> None:
        """Offer free_rows; replaces the worker's previous pull and stands until an assignment replies to it.

        A worker pulls again after each assignment if it has free rows, and withdraws its pull with 0 rows. `late_s` is
        the time until the worker could begin, `previews` whether it takes them too.
        """
        known = self._workers.get(worker)
        if known is None:
            return
        known.seen_at = now
        known.free_rows = min(pull.free_rows, known.rows)
        known.late_s = late_s
        known.takes_previews = previews
        self._balance.measure(known, pull.row_steps_per_s)
        saturating = usable(pull.saturating_rows)
        if saturating is not None:
            self._saturates(known, saturating)
        self._balance.recount(known)
        if known.free_rows > 0:
            self._pulls.push(known)
        else:
            self._pulls.forget(known)

    def heartbeat(self, worker: WorkerId, progress: Sequence[Progress], now: float) -> None:
        """Record a heartbeat and the step of each attempt."""
        known = self._record_sign(worker, now)
        if known is None:
            return
        for each in progress:
            ticket = self._booking.live(worker, each.request, each.attempt)
            if ticket is not None:
                self._booking.advance(ticket, each.step, now)
        if known.lags:
            stall_s = self._settings.stall_s
            known.lags = any(ticket.reported_at - ticket.moved_at > stall_s for ticket in known.leases.values())
        if known.measured is None:
            self._balance.measure(known, None)
        self._pulls.wake(known)

    def excuse(self, worker: WorkerId, now: float) -> None:
        """The connection of its node is broken: the worker is not silent, and has received no recall yet."""
        known = self._record_sign(worker, now)
        if known is not None:
            known.excused_at = now

    def committed(self, worker: WorkerId, request: RequestId, attempt: int, step: int, now: float) -> bool:
        """Record a commit at this step; False if the attempt is fenced, because it is not the live one."""
        self._record_sign(worker, now)
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
        """End the attempt at this step and requeue its request at the front; False if the attempt is fenced.

        The next attempt resumes from the newest commit, this one or an earlier. `reason` is derived unless given. After
        FAILED it restarts from `step`, whatever was committed, since the committed flight may be the cause.
        """
        self._record_sign(worker, now)
        ticket = self._booking.live(worker, request, attempt)
        if ticket is None:
            return False
        self._booking.advance(ticket, step, now)
        ticket.step = step if reason is ReleaseReason.FAILED else max(ticket.step, min(step, ticket.steps))
        default = ReleaseReason.RECALLED if ticket.is_recalled else ReleaseReason.HANDED_BACK
        self._booking.release(ticket, reason or default)
        return True

    def done(self, worker: WorkerId, request: RequestId, now: float) -> None:
        """Follow the ledger, which accepted or refused a result of this worker.

        The refusal of an older attempt changes nothing; a live attempt that was refused for its weights starts over.
        """
        known = self._workers.get(worker)
        if known is not None:
            known.seen_at = now
        self._booking.follow(request)

    def warn(self, worker: WorkerId, kind: NoticeKind | None, deadline: float, now: float) -> None:
        """Replace the worker's preemption notice, by none for None; the caller reads `must_hand_back` next."""
        known = self._record_sign(worker, now)
        if known is not None:
            notices.warn(known, kind, deadline)
            self._balance.recount(known)
            self._pulls.wake_all()
            if kind is not NoticeKind.IMMINENT:
                self._pulls.wake(known)

    def drain(self, worker: WorkerId) -> None:
        """Give this worker no more work; its leases come back by `hand_back`."""
        known = self._workers.get(worker)
        if known is not None:
            known.standing = Standing.DRAINING
            self._balance.recount(known)
            self._pulls.wake_all()

    def lose(self, worker: WorkerId, reason: ReleaseReason, now: float) -> list[RequestId]:
        """Remove a lost or fenced worker; its requests resume on other workers from their last commits."""
        known = self._workers.pop(worker, None)
        if known is None:
            return []
        held = sorted(known.leases.values(), key=lambda ticket: ticket.key)
        for ticket in held:
            self._booking.release(ticket, reason)
        self._pulls.forget(known)
        before = known.shared
        self._balance.remove(known)
        for backlog in before:
            self._booking.tidy(backlog)
        self._pulls.wake_all()
        return [ticket.id for ticket in held]

    # -- work ----------------------------------------------------------------------------------------------------------

    def add(self, requests: Iterable[Request], steps: Mapping[RequestId, int] | None = None) -> None:
        """Queue requests that are queued in the ledger: just issued, reopened, or left over by a restart.

        `steps` are those of the flights that some of them continue.
        """
        for request in requests:
            self._booking.add(request, steps.get(request.id, 0) if steps else 0)
        self._pulls.wake_all()

    def start_over(self, request: RequestId) -> None:
        """A waiting request has lost its flight."""
        self._booking.start_over(request)

    def cancel(self, work: Work) -> list[WorkerId]:
        """Drop unfinished requests of this kind; return the workers that hold some, which should discard them."""
        holders = [self._booking.dismiss(request) for request in self._ledger.cancel(work)]
        return sorted({holder for holder in holders if holder is not None})

    def drop(self, request: RequestId, reason: str) -> WorkerId | None:
        """Drop one request; return its holder."""
        self._ledger.drop(request, reason)
        return self._booking.dismiss(request)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def assign(self, now: float) -> list[Assignment]:
        """Serve standing pulls, the fastest worker first: fair shares to all, then one leftover row each."""
        if not self._booking.waiting or not self._pulls.entries:
            return []
        return self._rounds.serve(now)

    def recalls(self, now: float) -> list[Recalled]:
        """Requests of stragglers that an idle worker would finish clearly sooner; each attempt is recalled once."""
        if now < self._next_search or not self._pulls:
            return []
        self._next_search = now + self._settings.recall_every_s * (1 + len(self._workers) / 1000)
        known = self._smallest_batch, self._most_rows, self._balance.slowest
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
        """Workers that sent nothing for too long or ignored a recall; the caller calls `lose(SILENT)` first."""
        return sorted({worker.id for worker in self._watch.due(now, self._workers)})

    def must_hand_back(self, worker: WorkerId, now: float) -> list[RequestId]:
        """Requests that the worker cannot finish before its deadline; read again at each of its heartbeats."""
        known = self._workers.get(worker)
        return [ticket.id for ticket in notices.too_late(known, now, self._settings)] if known else []

    # -- reads ---------------------------------------------------------------------------------------------------------

    def workers(self) -> list[WorkerId]:
        return sorted(self._workers)

    def speed(self, worker: WorkerId) -> float:
        """Row-steps per second: measured, else the median of the others."""
        return self._workers[worker].speed

    def measured_speed(self, worker: WorkerId) -> float | None:
        """Row-steps per second if measured, else None."""
        return self._workers[worker].measured

    def step_s(self, worker: WorkerId) -> float:
        """Seconds of one step of a full batch."""
        known = self._workers[worker]
        return known.step_s(known.rows)

    def standing(self, worker: WorkerId) -> Standing:
        return self._workers[worker].standing

    def serves(self, worker: WorkerId) -> bool:
        """Whether it may receive any kind of work."""
        return self._workers[worker].standing is Standing.SERVING

    def is_engaged(self, worker: WorkerId) -> bool:
        """Whether it holds a lease or has a standing pull; the prediction cannot count on other workers."""
        known = self._workers[worker]
        return bool(known.leases) or known.free_rows > 0

    def has_pull(self, worker: WorkerId) -> bool:
        """Whether its pull stands."""
        return self._workers[worker].free_rows > 0

    def seconds_until(
        self, groups: Iterable[Iterable[RequestId]], count: int, team: Iterable[WorkerId], now: float,
        fetching: Fetching,
    ) -> float:  # fmt: skip
        """Seconds until `count` groups are finished, if the team takes what waits; infinite if unknown."""
        tickets = [self._booking.unfinished(group) for group in groups]
        return prediction.seconds_until(tickets, count, self._known(team), now, fetching)

    def seconds_of_exact_work(self, team: Iterable[WorkerId], fetching: Fetching) -> float:
        """Seconds that the team takes for all unfinished requests but previews; infinite if unknown."""
        workers, backlogs = self._workers.values(), self._booking.backlogs()
        return prediction.seconds_of_exact_work(workers, backlogs, self._known(team), fetching)

    def room(self, team: Iterable[WorkerId]) -> int:
        """Rows that the team can run at once."""
        return sum(worker.rows for worker in self._known(team))

    def has_waiting(self) -> bool:
        """Whether any request waits."""
        return self._booking.waiting > 0

    def has_exact_waiting(self) -> bool:
        """Whether any request but previews waits."""
        return self._booking.waiting > self.waiting(Work.PREVIEW)

    def is_only_ahead(self, iteration: int) -> bool:
        """Whether all waiting rollouts are of later iterations."""
        queues = [backlog.queues[Work.ROLLOUT.rank] for backlog in self._booking.backlogs()]
        return all(queue.head().request.iteration > iteration for queue in queues if queue.count)

    def waiting(self, work: Work) -> int:
        """Number of waiting requests of this kind."""
        return sum([backlog.queues[work.rank].count for backlog in self._booking.backlogs()])

    def unfinished(self, work: Work) -> int:
        """Number of requests of this kind that wait or are held."""
        return sum([backlog.unfinished[work.rank] for backlog in self._booking.backlogs()])

    @property
    def advances(self) -> int:
        """Number of reports that moved a live attempt to a later step."""
        return self._booking.advances

    @property
    def all_waiting(self) -> int:
        """Number of waiting requests of any kind."""
        return self._booking.waiting

    def steps_under_way(self, work: Work) -> int:
        """Denoising steps that live attempts of this kind have done, by the last reports of their workers."""
        held = [ticket for worker in self._workers.values() for ticket in worker.leases.values()]
        return sum(ticket.reached for ticket in held if ticket.request.work is work)

    def seconds_left(self, weights: WeightsId) -> float:
        """Seconds until the team of these weights finishes what waits and what it holds; infinite without a team."""
        known = [backlog for backlog in self._booking.backlogs() if backlog.weights == weights]
        return known[0].left_s() if known else inf

    # -- inside --------------------------------------------------------------------------------------------------------

    def _saturates(self, worker: WorkerRecord, rows: float) -> None:
        worker.saturating_rows = max(1.0, min(rows, worker.rows))
        self._smallest_batch = min(self._smallest_batch, worker.saturating_rows)

    def _known(self, workers: Iterable[WorkerId]) -> list[WorkerRecord]:
        return [self._workers[worker] for worker in workers]

    def _record_sign(self, worker: WorkerId, now: float) -> WorkerRecord | None:
        known = self._workers.get(worker)
        if known is not None:
            known.seen_at = now
        return known
