"""What workers say they did, as records: one thing after the other, and help told apart from a worker's own work.

A worker that trains does not know whether its rollouts are help: that depends on whether its iteration still has
something to train, which `Assist` knows. Invariant: records of a worker never overlap, and together they cover what it
told, as far as that was not told before (tests/unit/test_accounts.py).
"""

from collections.abc import Callable, Sequence

from spotlight.control.directory import Directory
from spotlight.control.pipeline.assist import Assist
from spotlight.core import messages as m
from spotlight.core.events import AnyEvent, Worked
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity

HELP = (Activity.ROLLOUT, Activity.PREVIEW)
"""What is help where there is something to train."""


class Accounts:
    """The dispatcher's clerk: `emit` gets what is new."""

    def __init__(
        self,
        directory: Directory,
        assist: Assist,
        emit: Callable[[AnyEvent], None],
        run_clock: Callable[[float], float],
    ) -> None:
        self._directory = directory
        self._assist = assist
        self._emit = emit
        self._run_clock = run_clock

    def told(self, worker: WorkerId, spans: Sequence[m.Span], now: float) -> None:
        """Spans told late would overlap, so none begins within the last."""
        known, run_time = self._directory.workers[worker], self._run_clock(now)
        for span in spans:
            for activity, began, ended in self._parts(span, now, known.trains):
                start, end = max(run_time - (now - began), known.accounted_to), run_time - (now - ended)
                if start < end:
                    known.accounted_to = end
                    self._emit(Worked(worker=worker, activity=activity, start=start, end=end))

    def _parts(self, span: m.Span, now: float, trains: bool) -> list[tuple[Activity, float, float]]:
        """A span, cut where help begins and ends."""
        start, end = now - span.start, now - span.end
        if not trains or span.activity not in HELP:
            return [(span.activity, start, end)]
        parts: list[tuple[Activity, float, float]] = []
        for began, ended in self._assist.helping(start, end):
            parts += [(span.activity, start, began), (Activity.ASSIST, began, ended)]
            start = ended
        return [*parts, (span.activity, start, end)]
