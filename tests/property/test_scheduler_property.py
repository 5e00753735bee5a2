"""The scheduler under any history: no request is lost, done twice, or given to a worker that may not have it."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduled_world import CURRENT, EXACT, PREVIOUS, Engines, World, request, requests

from spotlight.control.ledger import SampleState
from spotlight.core.events import Accepted
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, RefusalReason, ReleaseReason, RequestId, WeightsId, Work

STEPS = {Work.ROLLOUT: 6, Work.AUDIT: 6, Work.PREVIEW: 3}
SETS = ((CURRENT,), (PREVIOUS,), (CURRENT, PREVIOUS))


class WorkerModel:
    """Model of one worker."""

    def __init__(self, weights: tuple[WeightsId, ...], speed: float) -> None:
        self.weights = weights
        self.fetched: set[WeightsId] = set()
        self.speed = speed
        self.is_pulling = False
        self.warned: NoticeKind | None = None
        self.deadline = math.inf
        self.draining = False

    @property
    def serves(self) -> bool:
        return self.warned is None and not self.draining


class AnyHistory(RuleBasedStateMachine):
    """Workers join, work, fall silent and are lost; lost workers send late and repeated messages."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(EXACT)
        self.workers: dict[WorkerId, WorkerModel] = {}
        self.joined_workers = 0
        self.seeds = 0
        self.step: dict[RequestId, int] = {}
        self.reached: dict[RequestId, int] = {}
        self.old: list[tuple[WorkerId, RequestId, int]] = []
        """Leases that ended without a result."""

    # -- rules ---------------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.issue(4, Work.ROLLOUT, CURRENT)
        self.join((CURRENT,), 2.0)

    @rule(count=st.integers(1, 6), work=st.sampled_from(list(STEPS)), weights=st.sampled_from([CURRENT, PREVIOUS]))
    def issue(self, count: int, work: Work, weights: WeightsId) -> None:
        wanted = [
            request(self.seeds + i, group=self.seeds, work=work, steps=STEPS[work], version=weights.version)
            for i in range(count)
        ]
        self.seeds += count
        for name in self.world.issue(*wanted):
            self.step[name] = self.reached[name] = 0

    @rule(weights=st.sampled_from(SETS), speed=st.sampled_from([0.5, 1.0, 2.0, 3.0]))
    def join(self, weights: tuple[WeightsId, ...], speed: float) -> None:
        self.joined_workers += 1
        worker = self.world.join(f"worker-{self.joined_workers}", rows=4, weights=weights)
        self.workers[worker] = WorkerModel(weights, speed)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), free_rows=st.integers(0, 4))
    def pull(self, data: st.DataObject, free_rows: int) -> None:
        worker = self.any_worker(data)
        self.world.pull(worker, free_rows, self.workers[worker].speed)
        self.workers[worker].is_pulling = free_rows > 0

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), weights=st.sampled_from(SETS), fetches=st.booleans())
    def hold(self, data: st.DataObject, weights: tuple[WeightsId, ...], fetches: bool) -> None:
        worker = self.any_worker(data)
        fetched = {CURRENT, PREVIOUS} - set(weights) if fetches else set()
        self.world.scheduler.holds(worker, weights, fetched)
        self.workers[worker].fetched = fetched
        self.workers[worker].weights = weights

    @rule()
    def assign(self) -> None:
        for assignment in self.world.assign():
            known = self.workers[assignment.worker]
            known.is_pulling = False
            assert assignment.weights in known.weights
            assert not known.draining
            for lease in assignment.leases:
                name = lease.request.id
                assert lease.request.weights == assignment.weights
                assert self.world.ledger.holder(name) == assignment.worker
                assert self.world.ledger.attempt(name) == lease.attempt
                assert lease.step == self.step[name]
                self.check_service(known, lease.request.work)
            if known.warned is NoticeKind.IMMINENT:
                assert self.load(assignment.worker) <= (known.deadline - self.world.now) * known.speed + 1e-6

    @precondition(lambda self: self.world.count(SampleState.LEASED))
    @rule(data=st.data(), step=st.integers(1, 6), commits=st.booleans())
    def step_on(self, data: st.DataObject, step: int, commits: bool) -> None:
        worker, name = self.any_lease(data)
        step = min(step, self.steps(name))
        if commits:
            assert self.world.commit(worker, name, step)
            self.step[name] = max(self.step[name], step)
        else:
            self.world.progress(worker, step, [name])
        self.reached[name] = max(self.reached[name], step)

    @precondition(lambda self: self.world.count(SampleState.LEASED))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker, name = self.any_lease(data)
        assert self.world.finish(worker, name) is None

    @precondition(lambda self: self.world.count(SampleState.LEASED))
    @rule(data=st.data(), step=st.integers(0, 6))
    def hand_back(self, data: st.DataObject, step: int) -> None:
        worker, name = self.any_lease(data)
        self.old.append((worker, name, self.world.ledger.attempt(name)))
        assert self.world.hand_back(worker, name, min(step, self.steps(name)))
        self.step[name] = max(self.step[name], min(step, self.steps(name)))
        self.reached[name] = self.step[name]

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), reason=st.sampled_from([ReleaseReason.LOST, ReleaseReason.SILENT]))
    def lose(self, data: st.DataObject, reason: ReleaseReason) -> None:
        self.remove_worker(self.any_worker(data), reason)

    @precondition(lambda self: self.old)
    @rule(data=st.data(), step=st.integers(0, 6))
    def late_messages(self, data: st.DataObject, step: int) -> None:
        worker, name, attempt = data.draw(st.sampled_from(self.old))
        assert not self.world.scheduler.committed(worker, name, attempt, step, self.world.now)
        assert not self.world.scheduler.hand_back(worker, name, attempt, step, self.world.now)
        assert self.world.finish(worker, name, attempt=attempt) in (
            RefusalReason.FENCED,
            RefusalReason.DUPLICATE,
            RefusalReason.UNKNOWN,
        )

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), kind=st.sampled_from([*NoticeKind, None]), seconds=st.integers(0, 20))
    def warn(self, data: st.DataObject, kind: NoticeKind | None, seconds: int) -> None:
        """A notice, or its withdrawal."""
        worker = self.any_worker(data)
        known = self.workers[worker]
        self.world.scheduler.warn(worker, kind, self.world.now + seconds, self.world.now)
        known.warned = kind
        known.deadline = self.world.now + seconds if kind is NoticeKind.IMMINENT else math.inf
        assert self.world.scheduler.serves(worker) == (kind is None and not known.draining)
        late = self.world.scheduler.must_hand_back(worker, self.world.now)
        kept = self.load(worker) - sum(self.remaining(name) for name in late)
        if known.warned is NoticeKind.IMMINENT and not known.draining:
            assert kept <= max((known.deadline - self.world.now) * known.speed, 0) + 1e-6

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        self.world.scheduler.drain(worker)
        self.workers[worker].draining = True

    @rule(seconds=st.sampled_from([0.5, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        for worker in self.world.scheduler.silent(self.world.now):
            self.remove_worker(worker, ReleaseReason.SILENT)

    @rule()
    def recall(self) -> None:
        for recalled in self.world.scheduler.recalls(self.world.now):
            for name in recalled.requests:
                assert self.world.ledger.holder(name) == recalled.worker
                assert not name.startswith(Work.PREVIEW.value)

    @rule()
    def cancel_previews(self) -> None:
        held = {worker for worker, name in self.leases() if name.startswith(Work.PREVIEW.value)}
        assert self.world.scheduler.cancel(Work.PREVIEW) == sorted(held)

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_waiting_held_or_finished(self) -> None:
        waiting = sum(self.world.scheduler.waiting(work) for work in Work)
        assert waiting == self.world.count(SampleState.QUEUED)
        assert self.world.scheduler.workers() == sorted(self.workers)
        assert all(worker in self.workers for worker, _ in self.leases())

    @invariant()
    def sums_equal_a_recount(self) -> None:
        busy = {worker for worker, _ in self.leases()}
        for weights in (CURRENT, PREVIOUS):
            team = [
                worker
                for worker, known in self.workers.items()
                if known.serves and weights in {*known.weights, *known.fetched} and (known.is_pulling or worker in busy)
            ]
            queued = [each for each in self.world.ledger.queued() if each.weights == weights]
            row_steps = sum(self.remaining(each.id) for each in queued) + sum(map(self.load, team))
            # A worker counts with the speed of its last pull; before its first pull as unmeasured.
            speed = sum(self.world.scheduler.speed(worker) for worker in team)
            expected = row_steps / speed if team else math.inf
            assert math.isclose(self.world.scheduler.seconds_left(weights), expected, abs_tol=1e-9)

    def teardown(self) -> None:
        """Without further faults one healthy worker finishes every request, once."""
        if not self.workers and not self.seeds:
            return
        self.join(SETS[2], 1.0)
        healthy = WorkerId(f"worker-{self.joined_workers}")
        for _ in range(200):
            if not self.world.count(SampleState.QUEUED) + self.world.count(SampleState.LEASED):
                break
            self.world.now += 1.0
            for name in self.world.ledger.leases_of(healthy):
                self.world.finish(healthy, name)
            self.world.pull(healthy, 4, 1.0)
            for worker in self.world.scheduler.silent(self.world.now):
                self.remove_worker(worker, ReleaseReason.SILENT)
            self.world.assign()
        assert self.world.count(SampleState.QUEUED) + self.world.count(SampleState.LEASED) == 0
        accepted = [event.request for event in self.world.events if isinstance(event, Accepted)]
        assert len(accepted) == len(set(accepted))
        assert sorted(accepted) == sorted(name for name in self.step if not name.startswith(Work.PREVIEW.value))

    # -- helpers -------------------------------------------------------------------------------------------------------

    def any_worker(self, data: st.DataObject) -> WorkerId:
        return data.draw(st.sampled_from(sorted(self.workers)))

    def any_lease(self, data: st.DataObject) -> tuple[WorkerId, RequestId]:
        return data.draw(st.sampled_from(self.leases()))

    def leases(self) -> list[tuple[WorkerId, RequestId]]:
        names = [name for name in self.step if self.world.ledger.state(name) is SampleState.LEASED]
        return [(self.world.ledger.holder(name), name) for name in names]

    def steps(self, name: RequestId) -> int:
        return self.world.ledger.request(name).sample.sampling.steps

    def remaining(self, name: RequestId) -> int:
        return max(self.steps(name) - self.reached[name], 1)

    def load(self, worker: WorkerId) -> int:
        return sum(self.remaining(name) for name in self.world.ledger.leases_of(worker))

    def remove_worker(self, worker: WorkerId, reason: ReleaseReason) -> None:
        del self.workers[worker]
        held = self.world.ledger.leases_of(worker)
        self.old += [(worker, name, self.world.ledger.attempt(name)) for name in held]
        assert sorted(self.world.lose(worker, reason)) == held
        for name in held:
            self.reached[name] = self.step[name]

    def check_service(self, known: WorkerModel, work: Work) -> None:
        if known.warned is NoticeKind.ADVISORY:
            assert work is Work.PREVIEW
        if work is Work.PREVIEW and known.serves:
            waiting = [each.work for each in self.world.ledger.queued() if each.weights in known.weights]
            assert all(each is Work.PREVIEW for each in waiting), "a preview was given while other work waits"


AnyHistory.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestAnyHistory = AnyHistory.TestCase


@settings(max_examples=60)
@given(st.permutations([(i, g) for i in range(2) for g in range(3)]), st.integers(1, 5), st.integers(1, 4))
def test_one_worker_is_served_group_by_group_for_any_order_of_arrival(order, size, rows):
    world = World()
    for iteration, group in order:
        world.issue(*requests(size, group, iteration=iteration))
    worker = world.join("only", rows)
    served = []
    while given_now := world.give(worker, rows, 1.0):
        served += given_now
        for name in given_now:
            world.finish(worker, name)
    found = [world.ledger.request(name) for name in served]
    assert len(served) == 6 * size
    places = [(each.iteration, each.group, each.sample.seed) for each in found]
    assert places == sorted(places)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0, 6.0]), min_size=1, max_size=5),
    st.integers(1, 80),
    st.integers(1, 8),
)
def test_workers_of_any_speeds_end_close_to_the_best_possible_time(speeds, count, rows):
    world = World()
    world.issue(*requests(count))
    engines = Engines(world, {world.join(f"worker-{i}", rows): speed for i, speed in enumerate(speeds)}, rows)
    engines.run()
    assert world.count(SampleState.ACCEPTED) == count
    best_s = count * 10 / sum(speeds)
    one_row_s = 10 / min(speeds)
    one_step_s = rows / min(speeds)
    assert max(engines.ended.values()) <= best_s + one_row_s + one_step_s
