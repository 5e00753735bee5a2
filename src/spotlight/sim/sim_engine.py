"""The samples of a simulated worker: hashes for tensors, behind the calls of the real engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spotlight.compute.rollout.row_book import RowBook
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError
from spotlight.core.work import RequestId, WeightsId, Work
from spotlight.sim.numerics import Numerics
from spotlight.sim.row import SimRow, start_row

ROUNDING = 1e-6
"""Share of a step: a time this close after a boundary counts as the boundary."""


class SimCommit(NamedTuple):
    """A sample at a step boundary."""

    request: RequestId
    attempt: int
    step: int
    flight: bytes | None
    since: int = 0


class RunAhead(NamedTuple):
    """Rows that take several steps in one timer, until a message arrives."""

    rows: Sequence[SimRow]
    began: float
    step_s: float


class SimEngine(RowBook[SimRow]):
    """Up to `rows` samples in flight."""

    def __init__(
        self,
        rows: int,
        numerics: Numerics,
        holds: Mapping[WeightsId, str],
        is_exact: Callable[[Work], bool],
        withdrawn: Callable[[SimRow], None],
        now: Callable[[], float],
    ) -> None:
        """`withdrawn` is called with every sample that is handed back."""
        super().__init__(rows)
        self._is_exact = is_exact
        self.ahead: RunAhead | None = None
        self._numerics = numerics
        self._holds = holds
        self._withdrawn = withdrawn
        self._now = now

    def needs(self) -> set[WeightsId]:
        return {row.request.weights for row in self.live.values()}

    def admit(self, lease: m.Granted, flight: bytes | None) -> None:
        request = lease.request
        digest = self._holds.get(request.weights)
        if len(self.live) >= self.rows and request.id not in self.live:
            raise OverflowError(f"{request.id} was granted, but all {self.rows} rows are in flight")
        if request.id in self.live:
            raise ConfigError(f"{request.id} is in flight here")
        if digest is None:
            raise ConfigError(f"{request.weights} is not held")
        row = start_row(lease, digest, flight, self._is_exact(request.work), self._numerics)
        if isinstance(row, str):
            raise ConfigError(row)
        self.live[request.id] = row

    def withdraw(self, request: RequestId) -> SimCommit | None:
        row = self.live.pop(request, None)
        if row is None:
            return None
        self._withdrawn(row)
        return SimCommit(request, row.attempt, row.step, row.flight() if row.step else None)

    def progress(self) -> list[m.Progress]:
        """Current steps, those of a run ahead that is under way included."""
        rows, now = self.live.values(), self._now()
        return [m.Progress(row.request.id, row.attempt, self._reached(row, now)) for row in rows]

    def _reached(self, row: SimRow, now: float) -> int:
        if self.ahead is None or row not in self.ahead.rows:
            return row.step
        return row.step + min(row.steps_ahead, int((now - self.ahead.began) / self.ahead.step_s + ROUNDING))
