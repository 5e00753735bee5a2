"""Records the activity spans that workers report, and marks assistance by training workers.

A training worker cannot decide whether its rollouts are assistance: that depends on whether its iteration still has
samples to train, which `Assist` tracks. Invariant: the records of a worker never overlap, and together they cover its
reported spans (tests/unit/test_accounts.py).
"""

from collections.abc import Callable, Sequence

from spotlight.control.directory import Directory, KnownWorker
from spotlight.control.pipeline.tag import Assist
from spotlight.core import messages as m
from spotlight.core.events import AnyEvent, Worked
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity

ASSISTANCE = (Activity.ROLLOUT, Activity.PREVIEW)
"""Activities of a training worker that are assistance while its iteration has samples to train."""


class Accounts:
    """Converts reported spans into `Worked` events for `emit`."""

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
        """Record spans; each is cut to start after the previous one, so that late reports never overlap."""
        known, run_time = self._directory.workers[worker], self._run_clock(now)
        for span in spans:
            began, ended = now - span.start, now - span.end
            if not known.trains or span.activity not in ASSISTANCE:
                self._record(worker, known, span.activity, run_time - (now - began), run_time - (now - ended))
                continue
            for activity, start, end in self._parts(span.activity, began, ended):
                self._record(worker, known, activity, run_time - (now - start), run_time - (now - end))

    def _record(self, worker: WorkerId, known: KnownWorker, activity: Activity, start: float, end: float) -> None:
        if start < known.accounted_to:
            start = known.accounted_to
        if start < end:
            known.accounted_to = end
            self._emit(Worked(worker=worker, activity=activity, start=start, end=end))

    def _parts(self, activity: Activity, start: float, end: float) -> list[tuple[Activity, float, float]]:
        """Split a training worker's span at the start and end of assistance."""
        parts: list[tuple[Activity, float, float]] = []
        for began, ended in self._assist.helping(start, end):
            parts += [(activity, start, began), (Activity.ASSIST, began, ended)]
            start = ended
        return [*parts, (activity, start, end)]
