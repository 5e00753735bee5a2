"""Actions that the regroup machine returns to its caller, the node's agent, which carries them out in order."""

from dataclasses import dataclass

from spotlight.core.crew_messages import (
    Broke,
    Crewed,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    ForwardDone,
    GroupToken,
    Prepare,
    Prepared,
)
from spotlight.core.types import WorkerId

Order = Prepare | Form | Disband
"""Message from the agent to a worker."""
WorkerMessage = Prepared | Formed | Broke | Disbanded | Forward | ForwardDone
"""Message from a worker to the agent."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to a worker that is alive as far as the machine knows."""

    worker: WorkerId
    message: Order


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass the leader's message on to its followers, before any other message to them."""

    workers: tuple[WorkerId, ...]
    message: Forward


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL; the machine counts this worker as gone from here on. A later call of `gone` does nothing."""

    worker: WorkerId
    why: str
    """Continues the worker's name: "did not leave crew ..."."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Accept keys under this token."""

    token: GroupToken


@dataclass(frozen=True, slots=True)
class CloseStore:
    """Refuse this token from now on, fail every waiter under it and delete its keys."""

    token: GroupToken


@dataclass(frozen=True, slots=True)
class ReportCrews:
    """Report the crews to the controller."""

    crewed: Crewed


@dataclass(frozen=True, slots=True)
class Replan:
    """Decide a layout and call `wish` with it at once: survivors wait for their orders until then."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Log a message with an old token, or one that does not fit the crew's state; it had no effect."""

    worker: WorkerId
    message: WorkerMessage
    why: str


Action = Send | Relay | Kill | OpenStore | CloseStore | ReportCrews | Replan | Refuse
