"""A crew's group: formed by epoch without a default world, used for a few exchanges, dropped at the first error.

    form -> [exchanges] -> drop (on a thread) ; any failure drops it at once and raises CrewBroken

Invariant: a group that failed once is never used again, and its sockets close, so that a failure anywhere reaches every
member within the limit of an operation (tests/processes/test_parallel_faults.py). Every wait is bounded, and the error
names the member that was waited for. A crew of one has no group.

With gloo, tensors on a device pass through pinned host memory (run by crews of 2 and 4 on one GPU,
benchmarks/crew_steps/); with NCCL they are sent directly (unverified, see links.py). All members have the shapes
beforehand, so only data is exchanged.

Forming takes milliseconds (benchmarks/regroup/ measures the whole regroup). With more processes than cores, gloo's
event threads spin while they wait for a lock whose holder is not running; an exchange then takes a scheduler tick of
4 ms instead of 0.1 ms.
"""

import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum

import torch
import torch.distributed as dist
from torch import Tensor

from spotlight.compute.parallel.links import ExchangeFailure, GlooLink, GroupLink, NcclLink, staged_exchange, tear_down
from spotlight.compute.parallel.store_client import AgentStore
from spotlight.compute.parallel.store_wire import StoreError
from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import ConfigError, EnvironmentProblem, SpotlightError
from spotlight.core.types import WorkerId

FORM_TIMEOUT_S = 0.3
"""Connection timeout; a member that dies while others connect to it delays them by up to five times this."""
OPERATION_LIMIT_S = 20.0
"""Upper bound of a wait; the agent has the step times and kills a hung worker long before."""


class DeviceKind(StrEnum):
    """Communication library."""

    GLOO = "gloo"
    NCCL = "nccl"


class CrewBroken(SpotlightError):
    """A group failed and is dropped; the worker is a crew of one until the agent's next order."""

    def __init__(self, message: str, waited_for: WorkerId | None = None) -> None:
        super().__init__(message)
        self.waited_for = waited_for


class CrewGroup:
    """One rank of a formed group; call exchanges from one thread, `drop` from any."""

    def __init__(
        self, token: GroupToken, members: tuple[WorkerId, ...], rank: int, link: GroupLink, limit_s: float
    ) -> None:
        self.token = token
        self.members = members
        self.rank = rank
        self.limit_s = limit_s
        self.steady_limit_s = limit_s
        self._link: GroupLink | None = link
        self._lock = threading.Lock()

    @property
    def degree(self) -> int:
        return len(self.members)

    @property
    def leader(self) -> WorkerId:
        return self.members[0]

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def all_to_all(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send parts[i] to rank i; return the parts received, of which that from rank i has shapes[i]."""
        mine = parts[self.rank]
        received = [part if i == self.rank else mine.new_empty(shapes[i]) for i, part in enumerate(parts)]
        # Each rank starts with another peer, so that no peer receives from all at once.
        sends = {i: parts[i].contiguous() for i in self._peers(1)}
        self._exchange("all-to-all", sends, {i: received[i] for i in self._peers(-1)})
        received[self.rank] = mine
        return received

    def all_gather(self, shard_BSC: Tensor, sizes: Sequence[int]) -> Tensor:
        """Concatenate the shards of all ranks along the tokens, in rank order; rank i has sizes[i] tokens."""
        batch, _, channels = shard_BSC.shape
        shard_BSC = shard_BSC.contiguous()
        shapes = [(batch, size, channels) for size in sizes]
        return torch.cat(self.all_to_all([shard_BSC] * self.degree, shapes), dim=1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Send the leader's tensor to every rank; the others pass a tensor of its shape and type to fill."""
        if self.leads:
            self._exchange("broadcast", dict.fromkeys(self._peers(1), tensor.contiguous()), {})
        else:
            self._exchange("broadcast", {}, {0: tensor})
        return tensor

    def drop(self) -> None:
        """Release the group without waiting; may be called repeatedly and from any thread.

        Its sockets close within some ten milliseconds on another thread; the peers that wait for this rank then fail.
        A thread inside an exchange here stays there until the exchange ends or reaches its limit.
        """
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            tear_down(link)

    def abort(self) -> None:
        """Fail the exchange under way in another thread, here and at the peers, and release the group."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.cut()
            tear_down(link)

    def _peers(self, stride: int) -> list[int]:
        return [(self.rank + stride * distance) % self.degree for distance in range(1, self.degree)]

    def _exchange(self, operation: str, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        failure = self._attempt(sends, receives)
        if failure is not None:
            self.drop()
            raise self._broken(operation, failure)

    def _attempt(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> ExchangeFailure | None:
        link = self._link
        if link is None:
            return ExchangeFailure(None, "this worker had dropped the group")
        return staged_exchange(link, sends, receives, self.limit_s)

    def _broken(self, operation: str, failure: ExchangeFailure) -> CrewBroken:
        waited_for = None if failure.peer is None else self.members[failure.peer]
        return CrewBroken(
            f"rank {self.rank} of group {self.token} failed in {operation}"
            f"{f' while it waited for {waited_for}' if waited_for else ''} ({failure.problem}), because a member died, "
            "hung or left; the group is dropped: report it and wait for the agent's next order.",
            waited_for,
        )


def form(
    token: GroupToken,
    members: tuple[WorkerId, ...],
    rank: int,
    store: str,
    *,
    device_kind: DeviceKind = DeviceKind.GLOO,
    timeout_s: float = FORM_TIMEOUT_S,
    limit_s: float = OPERATION_LIMIT_S,
    first_limit_s: float | None = None,
) -> CrewGroup | None:
    """Connect to the other members through the store at this path and test the group; None for a crew of one.

    `limit_s` bounds one exchange, `first_limit_s` one of the first forward, for which members may have to compile.
    """
    if not 0 <= rank < len(members):
        raise ConfigError(
            f"rank {rank} is not in a crew of {len(members)}, whose ranks are 0 to {len(members) - 1}; pass the "
            "worker's index among the members."
        )
    if len(members) == 1:
        return None
    if device_kind is DeviceKind.NCCL and not dist.is_nccl_available():
        raise EnvironmentProblem(
            f"group {token} cannot be formed over NCCL, which this build of torch lacks; install a CUDA build, or use "
            "gloo."
        )
    group = _connected(token, members, rank, store, device_kind, timeout_s)
    check_connections(group, "cuda" if device_kind is DeviceKind.NCCL else "cpu")
    group.limit_s = first_limit_s or limit_s
    group.steady_limit_s = limit_s
    return group


def _connected(
    token: GroupToken, members: tuple[WorkerId, ...], rank: int, path: str, kind: DeviceKind, timeout_s: float
) -> CrewGroup:
    link_class: type[GlooLink] | type[NcclLink] = NcclLink if kind is DeviceKind.NCCL else GlooLink
    problem = ""
    try:
        store = AgentStore(path, token, timeout_s)
        try:
            return CrewGroup(token, members, rank, link_class(store, rank, len(members), timeout_s), timeout_s)
        finally:
            if kind is DeviceKind.GLOO:
                store.close()
    except (StoreError, RuntimeError) as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise CrewBroken(
        f"rank {rank} of group {token} could not connect ({problem}), because a member died or was late, or the agent "
        "dropped the group; report it and wait for the agent's next order."
    )


def check_connections(group: CrewGroup, device: str) -> None:
    """Exchange one number with every peer, to check that each connection ends at the right member."""
    numbers = [torch.tensor([_number(group, group.rank, peer)], device=device) for peer in range(group.degree)]
    received = group.all_to_all(numbers, [(1,)] * group.degree)
    wrong = [peer for peer in range(group.degree) if int(received[peer]) != _number(group, peer, group.rank)]
    if wrong:
        group.drop()
        raise CrewBroken(
            f"rank {group.rank} of group {group.token} is connected to another worker than {group.members[wrong[0]]}, "
            "because it received another group's number; the group is dropped: wait for the agent's next order.",
            group.members[wrong[0]],
        )


def _number(group: CrewGroup, sender: int, receiver: int) -> int:
    return (group.token.epoch * group.degree + sender) * group.degree + receiver
