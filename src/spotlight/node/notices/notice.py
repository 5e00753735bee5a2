"""A preemption notice, and the interface of what announces one."""

from abc import ABC, abstractmethod

import msgspec

from spotlight.core.errors import EnvironmentProblem
from spotlight.core.work import NoticeKind

POOL = "pool"
"""Source of the notices that a pool gives its nodes, as from a market's trace."""


class SourceFailed(EnvironmentProblem):
    """A source cannot say whether a notice is in force; the watcher polls it again."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A warning that this node will be lost."""

    kind: NoticeKind
    source: str
    """Name of the source that announces it, such as `aws`."""
    deadline: float | None = None
    """Monotonic time of the loss; None: not announced. An imminent notice always has one."""
    withdrawn: bool = False
    """Whether the source withdraws this notice, its latest one."""

    def __post_init__(self) -> None:
        if self.kind is NoticeKind.IMMINENT and self.deadline is None:
            raise ValueError(f"the imminent notice of '{self.source}' has no deadline, so no work can be planned by it")

    def seconds_left(self, now: float) -> float | None:
        """Seconds from `now` to the loss, 0 if the deadline is over; None if no time was announced."""
        return None if self.deadline is None else max(0.0, self.deadline - now)


class WatchedSource(ABC):
    """One place that announces notices. It reports the state, and the watcher derives the changes."""

    name: str
    """Unique among the sources that are watched together."""
    pause_s: float
    """Seconds between the end of a poll and the next one."""

    @abstractmethod
    async def poll(self) -> Notice | None:
        """Return the notice in force, or None without one; the same deadline on every poll that sees the same notice.

        May wait for a change, and may be cancelled at any time. Raises SourceFailed, or any other Exception, if the
        state is unknown; the last known state then stays in force.
        """

    def close(self) -> None:
        """Release what polls hold between them."""
        return
