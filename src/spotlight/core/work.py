"""Units of work: what is asked for, by whom it is held, and what became of it.

A request is named by what it is for, so two controllers that decide the same thing name it the same; an attempt number
tells apart the leases that one request has had, and the highest one is its fence.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, NewType, TypeVar, overload

import msgspec

from spotlight.core.types import Sample, Version

RequestId = NewType("RequestId", str)


class Work(StrEnum):
    """What a request is for, in the order of service."""

    ROLLOUT = "rollout"
    """An exact sample that is trained on."""
    AUDIT = "audit"
    """An exact sample of a random unselected seed: it measures previews, and may enter its group's baseline, but is
    never trained on."""
    EVALUATION = "evaluation"
    """A held-out prompt with fixed seed."""
    PREVIEW = "preview"
    """A cheap sample that only ranks its seed."""

    rank: int
    """0 is served first."""

    @property
    def is_exact(self) -> bool:
        """Whether it computes with the very weights; a preview only ranks, and may round them."""
        return self is not Work.PREVIEW


for _rank, _work in enumerate(Work):
    _work.rank = _rank


class Policy(StrEnum):
    """Which of the trainer's weight sets was published."""

    BEHAVIOUR = "behaviour"
    """What rolls out: NFT's old, Flow-GRPO's theta."""
    AVERAGE = "average"
    """The moving average, which is evaluated."""


class WeightsId(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """One published set of weights; a worker may hold two, a batch uses one."""

    version: Version
    policy: Policy = Policy.BEHAVIOUR

    def __str__(self) -> str:
        return f"{self.policy.value}-{self.version}"


Value = TypeVar("Value")


class _Kept(Generic[Value]):
    """A property that is worked out once, as `functools.cached_property` is, which takes a lock for it."""

    def __init__(self, work: Callable[[Any], Value]) -> None:
        self._work = work
        self._name = work.__name__

    @overload
    def __get__(self, of: None, owner: type[object]) -> "_Kept[Value]": ...

    @overload
    def __get__(self, of: object, owner: type[object] | None = None) -> Value: ...

    def __get__(self, of: Any, owner: type[object] | None = None) -> "Value | _Kept[Value]":
        if of is None:
            return self
        value = of.__dict__[self._name] = self._work(of)
        return value


class Request(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A sample that is wanted; its name and its weights are asked for at every turn, so they are kept."""

    work: Work
    iteration: int
    """The iteration that it is for; a preview is for the next one."""
    group: int
    """Number of its prompt within the iteration."""
    sample: Sample

    @_Kept
    def id(self) -> RequestId:
        return RequestId(f"{self.work.value}/{self.iteration}/{self.group}/{self.sample.seed}")

    @_Kept
    def weights(self) -> WeightsId:
        policy = Policy.AVERAGE if self.work is Work.EVALUATION else Policy.BEHAVIOUR
        return WeightsId(self.sample.version, policy)


class SlotClass(StrEnum):
    """How a slot is paid for, and whether it may vanish."""

    RESERVED = "reserved"
    SPOT = "spot"


class NoticeKind(StrEnum):
    """How certain a loss is."""

    ADVISORY = "advisory"
    """The slot may go: previews only."""
    IMMINENT = "imminent"
    """The slot goes at the deadline: finish what fits, commit and hand back the rest."""


class Activity(StrEnum):
    """What a slot's time is spent on, one thing at a time: most of it as its worker reports, ASSIST as the dispatcher
    knows, REGROUP and LOST as the meter finds."""

    START = "start"
    LOAD = "load"
    """Taking up weights that were written."""
    ROLLOUT = "rollout"
    EVALUATION = "evaluation"
    PREVIEW = "preview"
    TRAIN = "train"
    ASSIST = "assist"
    """Rolling out or previewing on a slot that trains, while its iteration still has something to train."""
    SWITCH = "switch"
    """Changing between rolling out and training."""
    PUBLISH = "publish"
    """Writing weights, to publish or to keep them."""
    REGROUP = "regroup"
    """Waiting for a crew to form."""
    LOST = "lost"
    """Steps that had to be done again, or that nobody wanted in the end."""
    IDLE = "idle"
