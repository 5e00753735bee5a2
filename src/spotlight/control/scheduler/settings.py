"""Section `scheduler` of the settings: timeouts, when a move pays, and margins under notice."""

from pydantic import Field

from spotlight.core.section import Section

SATURATING_ROWS = 4
"""See `SchedulerSettings.saturating_rows`."""


class SchedulerSettings(Section):
    """Limits of the scheduler."""

    silence_s: float = Field(default=10.0, gt=0)
    """Seconds without a message before a worker is fenced: less fences slow workers, more loses time to hung ones."""
    saturating_rows: int = Field(default=SATURATING_ROWS, ge=1)
    """Smallest batch that saturates a GPU, until a worker has measured its own: a step of fewer rows takes as long, as
    it is bound by launches."""
    audits_with_groups: bool = False
    """Whether audits are served right after the rollouts of their group, whose advantages depend on them, instead of
    after all rollouts."""
    straggler_factor: float = Field(default=2.0, ge=1)
    """A held request moves only if it would take this many times longer on its holder."""
    move_s: float = Field(default=1.0, ge=0)
    """Seconds that a move costs: the step in progress, the commit, the transfer of the flight."""
    recall_every_s: float = Field(default=0.5, ge=0)
    """Seconds between two searches for stragglers, plus as much per thousand workers: a search scans all workers."""
    recall_timeout_s: float = Field(default=10.0, gt=0)
    """A worker that still reports a recalled attempt this long after its step counts as silent."""
    stall_s: float = Field(default=5.0, gt=0)
    """Seconds without reported progress that count as normal; progress comes with heartbeats, so allow several."""
    deadline_margin: float = Field(default=0.25, ge=0)
    """Share by which work under notice counts as longer than measured."""
    commit_s: float = Field(default=1.0, ge=0)
    """Seconds before the deadline by which a result must be sent."""
