"""The points at which a simulated worker may be struck."""

from enum import StrEnum


class Left(Exception):
    """The worker leaves of its own accord."""


class Struck(Exception):
    """The worker dies here."""


class Moment(StrEnum):
    """Where a worker may be struck; the crash windows of exactly-once, by name."""

    AT_BOUNDARY = "between two denoising steps"
    BEFORE_RESULT = "before accept"
    ACCUMULATING = "gradients accumulated, no step"
    ACCUMULATED = "a part accumulated, not told"
    STEPPED = "stepped, not committed"
    STEP_TOLD = "stepped, the reply on its way"
    PUBLISHING = "committed, not published"
    PUBLISHED = "published, not told"
    SAVING = "checkpoint half-written"
    SAVED = "checkpoint written, not told"
    RESTORING = "while it is restored"
    PREPARED = "prepared for a crew, not connected"
    TOGETHER = "inside a crew's forward"
    DISBANDING = "asked to leave its crew"
