"""The part of a simulated node that its workers use."""

from typing import TYPE_CHECKING, Protocol

from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import Request, WeightsId
from spotlight.sim.crash_points import CrashPoint

if TYPE_CHECKING:
    from spotlight.sim.row import SimRow
    from spotlight.sim.sim_worker import SimWorker


class Surroundings(Protocol):
    """The worker's node and its faults."""

    def send_from(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None: ...

    def finished(self, worker: "SimWorker", row: "SimRow", digest: str, blob: bytes) -> None:
        """Score a finished sample and send its result; `digest` is that of the weights reported."""

    def finished_late(self, worker: "SimWorker", row: "SimRow", digest: str, blob: bytes) -> None:
        """Send the result of a sample that was handed back."""

    def stored(self, load: m.Load) -> str:
        """Digest of the bytes at the path on this node."""

    def brings(self, worker: WorkerId, weights: WeightsId) -> bool:
        """Whether the set, whose damaged copy the worker reported, may be on its way to it; fails the run if the worker
        needs it and it is not."""

    def memory_of(self, holder: WorkerId, weights: WeightsId) -> str | None:
        """Digest of the memory in which a neighbour held this set; None if its process is gone."""

    def read_back(self, digest: str, worker: WorkerId) -> str:
        """Digest that a worker reads back after it applied weights of this digest."""

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool: ...

    def fails(self, request: Request, attempt: int) -> bool:
        """Whether this attempt raises."""

    def late_result_delay(self, worker: WorkerId) -> float | None:
        """Seconds after which a handed-back sample is still reported as finished; None: never."""

    def digest_used(self, digest: str, worker: WorkerId) -> str:
        """Digest of the weights that a sample was actually made with."""
