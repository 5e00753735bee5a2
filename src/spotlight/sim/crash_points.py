"""The points at which a simulated worker may crash."""

from enum import StrEnum


class WorkerExited(Exception):
    """The worker exits in order."""


class Crashed(Exception):
    """The worker dies here."""


class CrashPoint(StrEnum):
    """Where a worker may die; the crash windows of exactly-once.

    The values are journaled as causes and name the random streams of storms: a new value changes what a seed draws.
    """

    AT_BOUNDARY = "between two denoising steps"
    BEFORE_RESULT = "before accept"
    ACCUMULATING = "gradients accumulated, no step"
    ACCUMULATED = "a part accumulated, not told"
    STEPPED = "stepped, not committed"
    REPLY_SENT = "stepped, the reply on its way"
    PUBLISHING = "committed, not published"
    PUBLISHED = "published, not told"
    SAVING = "checkpoint half-written"
    SAVED = "checkpoint written, not told"
    RESTORING = "while it is restored"
    FORMED = "connected to its gang, not reported"
    EXCHANGED = "gradients exchanged, no step"
    PREPARED = "prepared for a crew, not connected"
    IN_FORWARD = "inside a crew's forward"
    DISBANDING = "asked to leave its crew"
    OFFERING = "asked for weights, not offered"
    OFFERED = "weights offered, the offer on its way"
    COPYING = "weights half-copied from a neighbour"


class Broken(AssertionError):
    """An invariant does not hold."""
