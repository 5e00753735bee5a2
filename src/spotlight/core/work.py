"""Units of work: requests, weights, slots and activities.

A request's id derives from its content, so two controllers that make the same decision use the same id. The attempt
number distinguishes the leases of one request; the highest one is its fence.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, NewType, TypeVar, overload

import msgspec

from spotlight.core.types import Sample, Version

RequestId = NewType("RequestId", str)


class Work(StrEnum):
    """Purpose of a request, in the order of service."""

    ROLLOUT = "rollout"
    """An exact sample that is trained on."""
    AUDIT = "audit"
    """An exact sample of a random unselected seed: it measures previews and may enter its group's baseline; it is
    never trained on."""
    EVALUATION = "evaluation"
    """A held-out prompt with a fixed seed."""
    PREVIEW = "preview"
    """A cheap sample that only ranks its seed."""

    rank: int
    """Position in the order of service; 0 is first."""

    @property
    def is_exact(self) -> bool:
        """Whether it uses unrounded weights; a preview only ranks, and may round them."""
        return self is not Work.PREVIEW


for _rank, _work in enumerate(Work):
    _work.rank = _rank


class Policy(StrEnum):
    """One of the trainer's published weight sets."""

    BEHAVIOUR = "behaviour"
    """The policy that rolls out: NFT's old, Flow-GRPO's theta."""
    AVERAGE = "average"
    """The moving average, used for evaluation."""


class WeightsId(msgspec.Struct, frozen=True, order=True, gc=False, cache_hash=True):
    """One published set of weights; a worker may hold two, a batch uses one."""

    version: Version
    policy: Policy = Policy.BEHAVIOUR

    def __str__(self) -> str:
        return f"{self.policy.value}-{self.version}"


Value = TypeVar("Value")


class _CachedProperty(Generic[Value]):
    """`functools.cached_property` without the lock that it takes."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__

    @overload
    def __get__(self, instance: None, owner: type[object]) -> "_CachedProperty[Value]": ...

    @overload
    def __get__(self, instance: object, owner: type[object] | None = None) -> Value: ...

    def __get__(self, instance: Any, owner: type[object] | None = None) -> "Value | _CachedProperty[Value]":
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


class Request(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A requested sample. The hot paths read `id` and `weights` often, so both are cached."""

    work: Work
    iteration: int
    """Iteration that uses the sample; a preview belongs to the next one."""
    group: int
    """Number of the prompt within the iteration."""
    sample: Sample

    @_CachedProperty
    def id(self) -> RequestId:
        return RequestId(f"{self.work}/{self.iteration}/{self.group}/{self.sample.seed}")

    @_CachedProperty
    def weights(self) -> WeightsId:
        policy = Policy.AVERAGE if self.work is Work.EVALUATION else Policy.BEHAVIOUR
        return WeightsId(self.sample.version, policy)


_WORKS = {work.value: work for work in Work}
"""By value: quicker than a call of the class."""


def place_of(request: RequestId) -> tuple[Work, int, int, int]:
    """Kind of work, iteration, group and seed of a request, from its id."""
    work, iteration, group, seed = request.split("/")
    return _WORKS[work], int(iteration), int(group), int(seed)


def file_of(request: RequestId, attempt: int) -> str:
    """Name, without its ending, of the file with the sample of this attempt: a late one must not replace another's."""
    _, iteration, group, seed = place_of(request)
    return f"{iteration:06d}/{group:04d}-{seed}-{attempt}"


class SlotClass(StrEnum):
    """Billing class of a slot; a spot slot may be preempted."""

    RESERVED = "reserved"
    SPOT = "spot"


class NoticeKind(StrEnum):
    """Certainty of a preemption."""

    ADVISORY = "advisory"
    """The slot may be lost: previews only."""
    IMMINENT = "imminent"
    """The slot is lost at the deadline: finish the samples that fit, commit and hand back the rest."""


class Activity(StrEnum):
    """Use of a slot's time, one at a time. Workers report most of these; the dispatcher sets ASSIST; the meter sets
    REGROUP and LOST."""

    START = "start"
    LOAD = "load"
    """Loading published weights."""
    ROLLOUT = "rollout"
    EVALUATION = "evaluation"
    PREVIEW = "preview"
    TRAIN = "train"
    ASSIST = "assist"
    """Rolling out or previewing on a training slot while its iteration still has samples to train."""
    SWITCH = "switch"
    """Changing between rolling out and training."""
    PUBLISH = "publish"
    """Writing weights, for publication or a checkpoint."""
    REGROUP = "regroup"
    """Waiting for a crew to form."""
    LOST = "lost"
    """Denoising steps that were redone or discarded."""
    IDLE = "idle"


class ReleaseReason(StrEnum):
    HANDED_BACK = "handed_back"
    """Handed back with its flight, under notice or drain."""
    RECALLED = "recalled"
    """Moved from a straggler to a faster worker."""
    LOST = "lost"
    """The worker died."""
    SILENT = "silent"
    """The worker was fenced after its heartbeats stopped."""
    FAILED = "failed"
    """The attempt raised an error."""
    UNSCORED = "unscored"
    """The sample was finished, but no reward could score it: another attempt resumes at the newest commit."""
    RESTART = "restart"
    """The controller restarted: the sample continues from the newest flight in the store."""


class RefusalReason(StrEnum):
    FENCED = "fenced"
    """An older attempt than the current one."""
    DUPLICATE = "duplicate"
    """Already accepted."""
    UNKNOWN = "unknown"
    """Never issued, dropped, or cancelled."""
    WRONG_WEIGHTS = "wrong_weights"
    """Made with weights whose digest was not published."""
