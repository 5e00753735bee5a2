"""What workers say they did, as records: one thing after the other, and help told apart from a worker's own work.

A worker that trains does not know whether its rollouts are help: that depends on whether its iteration still has
something to train, which `Assist` knows. Invariant: records of a worker never overlap, and together they cover what it
told, as far as that was not told before (tests/unit/test_accounts.py).
"""

from collections.abc import Callable, Sequence

from spotlight.control.directory import Directory, KnownWorker
from spotlight.control.pipeline.tag import Assist
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

    def add_spans(self, worker: WorkerId, spans: Sequence[m.Span], now: float) -> None:
        """Spans told late would overlap, so none begins within the last."""
        known, run_time = self._directory.workers[worker], self._run_clock(now)
        for span in spans:
            began, ended = now - span.start, now - span.end
            if not known.trains or span.activity not in HELP:
                self._tell(worker, known, span.activity, run_time - (now - began), run_time - (now - ended))
                continue
            for activity, start, end in self._parts(span.activity, began, ended):
                self._tell(worker, known, activity, run_time - (now - start), run_time - (now - end))

    def _tell(self, worker: WorkerId, known: KnownWorker, activity: Activity, start: float, end: float) -> None:
        if start < known.accounted_to:
            start = known.accounted_to
        if start < end:
            known.accounted_to = end
            self._emit(Worked(worker=worker, activity=activity, start=start, end=end))

    def _parts(self, activity: Activity, start: float, end: float) -> list[tuple[Activity, float, float]]:
        """A span of who trains, cut where help begins and ends."""
        parts: list[tuple[Activity, float, float]] = []
        for began, ended in self._assist.helping(start, end):
            parts += [(activity, start, began), (Activity.ASSIST, began, ended)]
            start = ended
        return [*parts, (activity, start, end)]
