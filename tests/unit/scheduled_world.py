"""A ledger, a scheduler and workers in virtual time, for tests of the scheduler."""

import heapq
from collections.abc import Iterable, Sequence

from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.scheduler import Assignment, Scheduler, SchedulerSettings
from spotlight.core.events import Accepted, AnyEvent, Released
from spotlight.core.messages import Progress, Pull
from spotlight.core.types import PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import RefusalReason, ReleaseReason, Request, RequestId, SlotClass, WeightsId, Work

CURRENT = WeightsId(Version(3))
PREVIOUS = WeightsId(Version(2))
DIGEST = "digest of what was published"
EXACT = SchedulerSettings(saturating_rows=1, deadline_margin=0.0, commit_s=0.0, move_s=0.0)
"""Settings for mental arithmetic: no knee, no margins."""


def request(
    seed: int,
    group: int = 0,
    *,
    work: Work = Work.ROLLOUT,
    iteration: int = 0,
    steps: int = 10,
    version: int = CURRENT.version,
) -> Request:
    sampling = Sampling(steps=steps, size=Size(32, 96))
    sample = Sample(prompt=PromptId(f"prompt-{group}"), seed=seed, sampling=sampling, version=Version(version))
    return Request(work=work, iteration=iteration, group=group, sample=sample)


def requests(count: int, group: int = 0, **settings) -> list[Request]:
    return [request(seed, group, **settings) for seed in range(count)]


class World:
    """A ledger, a scheduler and the current time, with short methods for the tests."""

    def __init__(self, settings: SchedulerSettings = EXACT) -> None:
        self.events: list[AnyEvent] = []
        self.ledger = Ledger(self.events.append)
        self.scheduler = Scheduler(self.ledger, settings)
        self.now = 0.0

    def issue(self, *wanted: Request) -> list[RequestId]:
        self.ledger.issue(wanted)
        self.scheduler.add(wanted)
        return [each.id for each in wanted]

    def join(self, name: str, rows: int = 8, weights: Iterable[WeightsId] = (CURRENT,)) -> WorkerId:
        worker = WorkerId(name)
        self.scheduler.join(worker, SlotClass.SPOT, rows, self.now)
        self.scheduler.holds(worker, list(weights))
        return worker

    def pull(
        self, worker: WorkerId, free_rows: int = 8, speed: float | None = None, saturating: float | None = None
    ) -> None:
        offer = Pull(free_rows=free_rows, row_steps_per_s=speed, saturating_rows=saturating)
        self.scheduler.pull(worker, offer, self.now)

    def assign(self) -> list[Assignment]:
        return self.scheduler.assign(self.now)

    def give(self, worker: WorkerId, free_rows: int = 8, speed: float | None = None) -> list[RequestId]:
        """Pull for the worker and return what it is given."""
        self.pull(worker, free_rows, speed)
        return given_to(worker, self.assign())

    def progress(self, worker: WorkerId, step: int, only: Iterable[RequestId] | None = None) -> None:
        """Send a heartbeat: the worker's attempts are at this step."""
        held = self.ledger.leases_of(worker) if only is None else only
        self.scheduler.heartbeat(worker, [Progress(each, self.ledger.attempt(each), step) for each in held], self.now)

    def commit(self, worker: WorkerId, of: RequestId, step: int) -> bool:
        return self.scheduler.committed(worker, of, self.ledger.attempt(of), step, self.now)

    def finish(
        self, worker: WorkerId, of: RequestId, attempt: int | None = None, digest: str = DIGEST
    ) -> RefusalReason | None:
        """Accept a result of the worker."""
        attempt = self.ledger.attempt(of) if attempt is None else attempt
        result = Accepted(request=of, attempt=attempt, worker=worker, digest=digest, reward=0.0)
        refusal = self.ledger.accept(result, DIGEST)
        self.scheduler.done(worker, of, self.now)
        return refusal

    def hand_back(self, worker: WorkerId, of: RequestId, step: int) -> bool:
        return self.scheduler.hand_back(worker, of, self.ledger.attempt(of), step, self.now)

    def lose(self, worker: WorkerId, reason: ReleaseReason = ReleaseReason.LOST) -> list[RequestId]:
        return self.scheduler.lose(worker, reason, self.now)

    def released(self) -> list[Released]:
        return [event for event in self.events if isinstance(event, Released)]

    def count(self, state: SampleState) -> int:
        return self.ledger.counts()[state]


def given_to(worker: WorkerId, assignments: Sequence[Assignment]) -> list[RequestId]:
    return [lease.request.id for each in assignments if each.worker == worker for lease in each.leases]


class Engines:
    """Workers that step through what they hold, at their true speeds, until nothing is left to do."""

    def __init__(self, world: World, speeds: dict[WorkerId, float], rows: int) -> None:
        self.world = world
        self.speeds = speeds
        self.rows = rows
        self.steps: dict[WorkerId, dict[RequestId, int]] = {worker: {} for worker in speeds}
        self.ended: dict[WorkerId, float] = dict.fromkeys(speeds, 0.0)
        """When each worker finished its last request."""
        self._boundaries: list[tuple[float, WorkerId]] = []
        self._recalled: set[RequestId] = set()

    def run(self) -> None:
        for worker in sorted(self.speeds):
            self.world.pull(worker, self.rows, self.speeds[worker])
        self._serve()
        while self._boundaries:
            self.world.now, worker = heapq.heappop(self._boundaries)
            self._boundary(worker)
            for recalled in self.world.scheduler.recalls(self.world.now):
                self._recalled.update(recalled.requests)
            self._serve()
            if self.steps[worker]:
                self._schedule(worker)

    def _boundary(self, worker: WorkerId) -> None:
        rows = self.steps[worker]
        for each in sorted(rows):
            rows[each] += 1
            if rows[each] == self.world.ledger.request(each).sample.sampling.steps:
                del rows[each]
                self.ended[worker] = self.world.now
                assert self.world.finish(worker, each) is None
            elif each in self._recalled:
                self.world.hand_back(worker, each, rows.pop(each))
                self._recalled.discard(each)
            else:
                self.world.progress(worker, rows[each], [each])
        if len(rows) < self.rows:
            self.world.pull(worker, self.rows - len(rows), self.speeds[worker])

    def _serve(self) -> None:
        for assignment in self.world.assign():
            rows = self.steps[assignment.worker]
            was_idle = not rows
            rows.update({lease.request.id: lease.step for lease in assignment.leases})
            assert len(rows) <= self.rows
            if was_idle and all(worker != assignment.worker for _, worker in self._boundaries):
                self._schedule(assignment.worker)

    def _schedule(self, worker: WorkerId) -> None:
        if all(known != worker for _, known in self._boundaries):
            step_s = len(self.steps[worker]) / self.speeds[worker]
            heapq.heappush(self._boundaries, (self.world.now + step_s, worker))
