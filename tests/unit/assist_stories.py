"""A gang of one beside one spot worker, for stories about help.

Both take a row-step in a tenth of a second at a full batch of ten rows: a step of a batch is 1 s, a sample of ten steps
takes 10 s.
"""

from collections.abc import Sequence

from scheduled_world import CURRENT, EXACT, request

from spotlight.control.directory import Directory, KnownWorker, PublishedSet
from spotlight.control.ledger import Ledger
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.tag import Assist, NextPart
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, RequestId, SlotClass

SPOT, TRAINS = WorkerId("spot"), WorkerId("trains")
ROWS, SPEED = 10, 10.0


class Tale:
    """A gang of one beside one spot worker, and what they were given."""

    def __init__(self, speed: float | None = SPEED, **pipeline: float) -> None:
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger, EXACT)
        self.directory = Directory()
        self.assist = Assist(PipelineConfig(**{"gap": True, **pipeline}), self.directory, self.scheduler)
        self.given: dict[WorkerId, list[RequestId]] = {SPOT: [], TRAINS: []}
        self.now, self._speed = 0.0, speed
        for worker, trains in ((SPOT, False), (TRAINS, True)):
            self.directory.introduce(worker, KnownWorker(NodeId("node"), trains))
            self.scheduler.join(worker, SlotClass.RESERVED, ROWS, self.now)
            self.scheduler.holds(worker, [CURRENT])

    def issue(self, groups: int, size: int = ROWS) -> list[list[RequestId]]:
        wanted: list[list[Request]] = [
            [request(seed, group) for seed in range(size * group, size * group + size)] for group in range(groups)
        ]
        everything = [each for group in wanted for each in group]
        self.ledger.issue(everything)
        self.scheduler.add(everything)
        return [[each.id for each in group] for group in wanted]

    def asks(self, worker: WorkerId, rows: int = ROWS) -> None:
        self.assist.pull(worker, m.Pull(free_rows=rows, row_steps_per_s=self._speed), self.now)
        self.serve()

    def serve(self) -> None:
        self.assist.let_through(self.now)
        for assignment in self.scheduler.assign(self.now):
            self.given[assignment.worker] += [lease.request.id for lease in assignment.leases]

    def waits(self, groups: Sequence[Sequence[RequestId]], train_s: float | None = None, sample_s: float = 0.0) -> None:
        self.assist.wait(lambda: NextPart([list(group) for group in groups], 1, train_s, sample_s), self.now)

    def announced(self, fetch_s: float) -> None:
        """New weights, which the spot worker holds after `fetch_s` and the other one at once."""
        self.directory.weights[CURRENT] = PublishedSet("digest", "", announced_at=self.now)
        for worker, seconds in ((SPOT, fetch_s), (TRAINS, 0.0)):
            self.directory.workers[worker].fetch_s = seconds
            if seconds:
                self.scheduler.holds(worker, [])
            else:
                self.directory.holds(worker, CURRENT, self.now)

    def helps(self) -> bool:
        return bool(self.given[TRAINS])
