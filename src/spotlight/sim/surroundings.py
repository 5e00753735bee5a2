"""What a simulated worker needs of the node that it lives on."""

from typing import TYPE_CHECKING, Protocol

from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import Request
from spotlight.sim.moments import Moment

if TYPE_CHECKING:
    from spotlight.sim.row import SimRow
    from spotlight.sim.sim_worker import SimWorker


class Surroundings(Protocol):
    """The node that a worker lives on, and whoever means it ill."""

    def say(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None: ...

    def finished(self, worker: "SimWorker", row: "SimRow", digest: str, blob: bytes) -> None:
        """A picture for the judges, and the weights that it is said to be made with."""

    def read_weights(self, load: m.Load, worker: WorkerId) -> str:
        """Digest of the bytes that were really applied."""

    def should_crash(self, moment: Moment, worker: WorkerId) -> bool: ...

    def fails(self, request: Request, attempt: int) -> bool:
        """Whether this attempt raises."""

    def late_result_delay(self, worker: WorkerId) -> float | None:
        """After how many seconds it tells of a sample as finished that it had handed back; None: never."""

    def digest_used(self, digest: str, worker: WorkerId) -> str:
        """Of the weights that a sample was really made with."""
