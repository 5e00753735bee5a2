"""What the regroup machine asks its caller, the node's agent, to do; carried out in order, nothing is answered."""

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
"""What the agent tells a worker."""
Word = Prepared | Formed | Broke | Disbanded | Forward | ForwardDone
"""What a worker tells the agent."""


@dataclass(frozen=True, slots=True)
class Send:
    """Tell this worker; it is alive as far as the machine knows."""

    worker: WorkerId
    message: Order


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass the leader's word on to its followers, before anything else is told them."""

    workers: tuple[WorkerId, ...]
    message: Forward


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL; the machine counts this worker as gone from here on, `gone` may still be called and does nothing."""

    worker: WorkerId
    why: str
    """Reads on from the worker's name: "did not leave crew ..."."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Accept keys under this token."""

    token: GroupToken


@dataclass(frozen=True, slots=True)
class CloseStore:
    """Refuse this token from now on, fail whoever waits under it and delete its keys."""

    token: GroupToken


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the controller."""

    crewed: Crewed


@dataclass(frozen=True, slots=True)
class Replan:
    """Decide a layout and call `wish` with it, at once: survivors wait for their orders until then."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """An old token, or a word out of turn: nothing was done about it; log it."""

    worker: WorkerId
    message: Word
    why: str


Action = Send | Relay | Kill | OpenStore | CloseStore | Report | Replan | Refuse
