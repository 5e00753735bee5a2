"""Messages with which training ranks form a gang and report on its exchanges; part of the union of all messages."""

from spotlight.core.message import Message


class StoreOpened(Message, frozen=True, kw_only=True):
    """Rank 0 of gang `epoch` serves the store at which its ranks meet."""

    epoch: int
    store: str
    """host:port"""


class GangFormed(Message, frozen=True, kw_only=True):
    """This rank is connected to all others of gang `epoch`."""

    epoch: int
    steps: int
    """Optimizer steps that its theta contains; -1: it holds no state that another rank could receive."""


class AwaitsRanks(Message, frozen=True, kw_only=True):
    """This rank has added its share of a part and enters an exchange, where it waits for the other ranks."""

    step: int
    part: int


class GangBroken(Message, frozen=True, kw_only=True):
    """An exchange of gang `epoch` failed, because another rank died or hung; this process waits for a FormGang."""

    epoch: int
    problem: str
