"""Finished spans of a simulated worker's activities, until a heartbeat reports them.

Invariant: spans are ordered by time and do not overlap (tests/unit/test_sim_spans.py).
"""

from spotlight.core import messages as m
from spotlight.core.work import Activity


class SimSpans:
    """As `node.spans.SpanLog`, in virtual time and for finished spans only."""

    def __init__(self) -> None:
        self._done: list[tuple[Activity, float, float]] = []

    def worked(self, activity: Activity, began: float, ended: float) -> None:
        """Add a span; an empty one is dropped, and one that continues the last activity is merged."""
        if ended <= began:
            return
        if self._done and self._done[-1][0] is activity and self._done[-1][2] == began:
            began = self._done.pop()[1]
        self._done.append((activity, began, ended))

    def trained(self, began: float, ended: float, switch_s: float) -> None:
        """Add the spans of an order to train whose first `switch_s` seconds were the change of role."""
        start = min(began + switch_s, ended)
        self.worked(Activity.SWITCH, began, start)
        self.worked(Activity.TRAIN, start, ended)

    def take(self, now: float) -> tuple[m.Span, ...]:
        """Return and clear all spans, in seconds before now."""
        done, self._done = self._done, []
        return tuple(m.Span(activity, now - start, now - end) for activity, start, end in done)
