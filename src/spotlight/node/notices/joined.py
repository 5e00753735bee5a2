"""The notices of several sources become one: the most severe kind with the nearest deadline.

    CLEAR --advisory--> ADVISED --imminent--> LEAVING --nearer deadline--> LEAVING
      |                    |                     |
      |<----withdrawn------+                     |
      |                    |<-------------------withdrawn; an advisory notice remains
      |<----------------------------------------withdrawn; none remains

CLEAR changes to LEAVING directly if the first notice is imminent. A deadline that moves later, as when one of two
sources withdraws the nearest one, is a withdrawal followed by what remains in force.
"""

import math
from enum import IntEnum

import msgspec

from spotlight.core.work import NoticeKind
from spotlight.node.notices.notice import Notice

SAME_S = 1.0
"""Deadlines that differ by less are one event seen by two sources."""


class NoticeState(IntEnum):
    """What is in force for the node, by severity."""

    CLEAR = 0
    ADVISED = 1
    LEAVING = 2


class JoinedNotices:
    """Holds the latest notice of every source, and derives what to announce."""

    def __init__(self) -> None:
        self._by_source: dict[str, Notice] = {}
        self._announced: Notice | None = None

    def update(self, source: str, notice: Notice | None) -> list[Notice]:
        """Apply the state of one source; returns what has changed for the node, in order."""
        if notice is None:
            self._by_source.pop(source, None)
        else:
            self._by_source[source] = notice
        before, after = self._announced, min(self._by_source.values(), key=_order, default=None)
        state, next_state = _state(before), _state(after)
        later_s = _deadline(after) - _deadline(before) if state is next_state is NoticeState.LEAVING else 0.0
        if state is next_state and abs(later_s) < SAME_S:
            return []
        self._announced = after
        is_withdrawn = next_state < state or later_s > 0
        withdrawn = [msgspec.structs.replace(before, withdrawn=True)] if before and is_withdrawn else []
        return [*withdrawn, after] if after else withdrawn


def _state(notice: Notice | None) -> NoticeState:
    if notice is None:
        return NoticeState.CLEAR
    return NoticeState.LEAVING if notice.kind is NoticeKind.IMMINENT else NoticeState.ADVISED


def _deadline(notice: Notice | None) -> float:
    return math.inf if notice is None or notice.deadline is None else notice.deadline


def _order(notice: Notice) -> tuple[int, float]:
    """The most severe first, then the nearest deadline."""
    return -_state(notice), _deadline(notice)
