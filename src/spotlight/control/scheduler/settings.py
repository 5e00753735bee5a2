"""What may be tuned about who gets what: patience, the worth of a move, and the care taken under notice."""

from pydantic import Field

from spotlight.core.section import Section


class SchedulerSettings(Section):
    """Limits of the scheduler; each says what it trades."""

    silence_s: float = Field(default=10.0, gt=0)
    """A worker that says nothing for this long is fenced; less forgives less, more loses time to one that hangs."""
    saturating_rows: int = Field(default=4, ge=1)
    """Fewer rows than this take as long per step as this many: below, a GPU is bound by launches, not arithmetic."""
    audits_with_groups: bool = False
    """Whether audits are served right after the rollouts of their group, whose advantages wait for them, instead of
    after all rollouts."""
    straggler_factor: float = Field(default=2.0, ge=1)
    """A held request moves only if it would take this many times longer where it is."""
    move_s: float = Field(default=1.0, ge=0)
    """What a move costs: the step in progress, the commit, the flight on its way."""
    recall_every_s: float = Field(default=0.5, ge=0)
    """Seconds between two searches for stragglers, and as much again per thousand workers: a search looks at all."""
    recall_timeout_s: float = Field(default=10.0, gt=0)
    """A worker that still names, this long after its step, what it was to hand back counts as silent."""
    stall_s: float = Field(default=5.0, gt=0)
    """No news of progress for this long is no sign of anything; heartbeats carry it, so keep this several of them."""
    deadline_margin: float = Field(default=0.25, ge=0)
    """Under notice, work counts as taking this share longer than measured."""
    commit_s: float = Field(default=1.0, ge=0)
    """Seconds before the deadline by which a result must be on its way."""
