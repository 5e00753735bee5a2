"""The notices of several sources become one: the most severe kind with the nearest deadline.

    CLEAR --advisory--> ADVISED --imminent--> LEAVING --nearer deadline--> LEAVING
      |                    |                     |
      |<----withdrawn------+                     |
      |                    |<-------------------withdrawn; an advisory notice remains
      |<----------------------------------------withdrawn; none remains

CLEAR changes to LEAVING directly if the first notice is imminent. What is announced replaces what was announced before,
also if it is less severe or later, as when one of two sources withdraws the nearer deadline.

Invariant (tests/property/test_notices_property.py): what is announced is the most severe notice that some source holds
in force, and of imminent ones the nearest deadline within SAME_S.
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
        self.in_force: Notice | None = None
        """The node's notice, as last announced."""

    def update(self, notice: Notice) -> Notice | None:
        """Apply a source's notice or withdrawal; return the node's new notice, or None if nothing changes for it.

        The new notice replaces the earlier one; it is withdrawn if no source has a notice any more.
        """
        if notice.withdrawn:
            self._by_source.pop(notice.source, None)
        else:
            self._by_source[notice.source] = notice
        before, after = self.in_force, min(self._by_source.values(), key=_order, default=None)
        state, next_state = _state(before), _state(after)
        moved_s = _deadline(after) - _deadline(before) if state is next_state is NoticeState.LEAVING else 0.0
        if state is next_state and abs(moved_s) < SAME_S:
            return None
        self.in_force = after
        return after or (msgspec.structs.replace(before, withdrawn=True) if before else None)


def _state(notice: Notice | None) -> NoticeState:
    if notice is None:
        return NoticeState.CLEAR
    return NoticeState.LEAVING if notice.kind is NoticeKind.IMMINENT else NoticeState.ADVISED


def _deadline(notice: Notice | None) -> float:
    return math.inf if notice is None or notice.deadline is None else notice.deadline


def _order(notice: Notice) -> tuple[int, float]:
    """The most severe first, then the nearest deadline."""
    return -_state(notice), _deadline(notice)
