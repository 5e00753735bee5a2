"""What a simulated worker did when: spans that are over, until a heartbeat tells of them.

Invariant: spans are in the order of time and do not overlap (tests/unit/test_sim_spans.py).
"""

from spotlight.core import messages as m
from spotlight.core.work import Activity


class SimSpans:
    """As `runtime.spans.SpanLog`, but under the virtual clock, and of what is over only."""

    def __init__(self) -> None:
        self._done: list[tuple[Activity, float, float]] = []

    def worked(self, activity: Activity, began: float, ended: float) -> None:
        """What took no time is not told; what follows without a pause is one span."""
        if ended <= began:
            return
        if self._done and self._done[-1][0] is activity and self._done[-1][2] == began:
            began = self._done.pop()[1]
        self._done.append((activity, began, ended))

    def trained(self, began: float, ended: float, switch_s: float) -> None:
        """An order to train, of whose seconds the first so many went into the change of role."""
        start = min(began + switch_s, ended)
        self.worked(Activity.SWITCH, began, start)
        self.worked(Activity.TRAIN, start, ended)

    def take(self, now: float) -> tuple[m.Span, ...]:
        """Everything since the last time, in seconds before now."""
        done, self._done = self._done, []
        return tuple(m.Span(activity, now - start, now - end) for activity, start, end in done)
