"""Ledger and scheduler with simulated workers, in memory."""

import gc
import random
import time

from benchmarks.lib.figures import Figure
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.core.events import Accepted
from spotlight.core.messages import Progress, Pull
from spotlight.core.types import PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Policy, Request, SlotClass, WeightsId, Work

GROUP = 16
STEPS = 10
WORKERS = (100, 1_000, 10_000)
SPARE = 6 * max(WORKERS)
HELD = (WeightsId(Version(0)), WeightsId(Version(0), Policy.AVERAGE))
DIGEST = "published"


def wanted(count: int) -> list[Request]:
    sampling = Sampling(steps=STEPS, size=Size(32, 96))
    return [
        Request(
            work=Work.ROLLOUT,
            iteration=0,
            group=index // GROUP,
            sample=Sample(prompt=PromptId("p"), seed=index, sampling=sampling, version=Version(0)),
        )
        for index in range(count)
    ]


class Cluster:
    """Workers of different speeds, each with one lease, in virtual time."""

    def __init__(self, workers: int, cycles: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._speeds = {WorkerId(f"spot-{i}.1/0.1"): self._random.uniform(1.0, 4.0) for i in range(workers)}
        self._now = 0.0
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger)
        requests = wanted(cycles + SPARE)
        self.ledger.issue(requests)
        self.scheduler.add(requests)
        for worker in self._speeds:
            self.scheduler.join(worker, SlotClass.SPOT, 1, self._now)
            self.scheduler.holds(worker, HELD)
            self._pull(worker)
        self._held = {
            assignment.worker: assignment.leases[0]
            for _ in range(workers)
            for assignment in self.scheduler.assign(self._now)
        }

    def run(self, cycles: int) -> float:
        """Processor seconds per cycle; those of other processes are not counted."""
        order = [worker for _ in range(cycles // len(self._speeds) + 1) for worker in self._shuffled()][:cycles]
        tick = STEPS / 2.5 / len(self._speeds)
        gc.collect()
        began = time.process_time()
        for worker in order:
            self._now += tick
            self._cycle(worker)
        return (time.process_time() - began) / cycles

    def _cycle(self, worker: WorkerId) -> None:
        held, now = self._held[worker], self._now
        request = held.request.id
        self.scheduler.heartbeat(worker, (Progress(request, held.attempt, STEPS // 2),), now)
        result = Accepted(request=request, attempt=held.attempt, worker=worker, digest=DIGEST, reward=0.5, steps=STEPS)
        if self.ledger.accept(result, DIGEST) is not None:
            raise AssertionError(f"{request} was refused")
        self.scheduler.done(worker, request, now)
        self._pull(worker)
        self.scheduler.silent(now)
        (assignment,) = self.scheduler.assign(now)
        self._held[assignment.worker] = assignment.leases[0]

    def _pull(self, worker: WorkerId) -> None:
        # Measured speeds vary, so the order of speeds changes with every pull.
        speed = self._speeds[worker] * self._random.uniform(0.95, 1.05)
        self.scheduler.pull(worker, Pull(free_rows=1, row_steps_per_s=speed), self._now)

    def _shuffled(self) -> list[WorkerId]:
        return self._random.sample(list(self._speeds), len(self._speeds))


def figures(repeats: int, cycles: int) -> dict[str, Figure]:
    """Sizes alternate within a repeat, so that other load on the host slows all of them."""
    cycle_s: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    for seed in range(repeats):
        for workers in WORKERS:
            cycle_s[workers].append(Cluster(workers, cycles, seed).run(cycles))
    growth = [large / small for small, large in zip(cycle_s[1_000], cycle_s[10_000], strict=True)]
    return {
        "lease_cycles_per_s_1k": Figure.median(
            [1 / s for s in cycle_s[1_000]], "lease cycles per processor second, 1,000 workers"
        ),
        "lease_cycles_per_s_10k": Figure.median(
            [1 / s for s in cycle_s[10_000]], "lease cycles per processor second, 10,000 workers"
        ),
        "lease_cycles_per_s_100": Figure.median(
            [1 / s for s in cycle_s[100]], "lease cycles per processor second, 100 workers"
        ),
        "growth_1k_to_10k": Figure.median(growth, "time per cycle with 10,000 workers / with 1,000; log n is 1.33"),
    }
