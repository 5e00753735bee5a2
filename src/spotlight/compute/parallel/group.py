"""A crew's group: formed by epoch without a default world, used for a few exchanges, dropped at the first error.

    form -> [exchanges] -> drop (on a thread) ; any failure drops it at once and raises CrewBroken

Invariant: a group that failed once is never used again, and its sockets close, so that a failure anywhere reaches every
member within the limit of an operation (tests/processes/test_parallel_faults.py). Nothing waits without a bound, and
what is raised names whom it waited for. A crew of one has no group.

Tensors on a device travel through pinned host memory with gloo (run by crews of 2 and 4 on one GPU,
benchmarks/crew_steps/) and directly with NCCL (unverified, see links.py). Shapes are known to all members beforehand;
nothing is exchanged but data.

Forming costs milliseconds (benchmarks/regroup/ measures it with everything around it).
With more processes than cores gloo's event threads spin while they wait for a lock whose holder is not running, so that
an exchange then takes a scheduler tick of 4 ms instead of 0.1 ms; that is the oversubscription, not the group.
"""

import threading
from collections.abc import Mapping, Sequence
from enum import StrEnum

import torch
import torch.distributed as dist
from torch import Tensor

from spotlight.compute.parallel.links import ExchangeFailure, GlooLink, Link, NcclLink, bury
from spotlight.compute.parallel.store_client import AgentStore
from spotlight.compute.parallel.store_wire import StoreError
from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import ConfigError, EnvironmentProblem, SpotlightError
from spotlight.core.types import WorkerId

FORM_TIMEOUT_S = 0.3
"""A member that dies while others connect to it costs them up to five times this."""
OPERATION_LIMIT_S = 20.0
"""The last bound of a wait; the agent, which knows how long steps take, kills what hangs long before."""


class DeviceKind(StrEnum):
    """What tensors travel over."""

    GLOO = "gloo"
    NCCL = "nccl"


class CrewBroken(SpotlightError):
    """A group failed; it is dropped, and whoever used it stands alone until the agent says more."""

    def __init__(self, message: str, waited_for: WorkerId | None = None) -> None:
        super().__init__(message)
        self.waited_for = waited_for


class CrewGroup:
    """One rank's place in a formed group; exchanges belong to one thread, `drop` to any."""

    def __init__(self, token: GroupToken, members: tuple[WorkerId, ...], rank: int, link: Link, limit_s: float) -> None:
        self.token = token
        self.members = members
        self.rank = rank
        self.limit_s = limit_s
        self.steady_limit_s = limit_s
        self._link: Link | None = link
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
        """parts[i] goes to rank i; what came from rank i has shapes[i]. Sizes may all differ."""
        mine = parts[self.rank]
        received = [part if i == self.rank else mine.new_empty(shapes[i]) for i, part in enumerate(parts)]
        # Each rank starts with another peer, so that nobody is called by all at once.
        sends = {i: parts[i].contiguous() for i in self._peers(1)}
        self._exchange("all-to-all", sends, {i: received[i] for i in self._peers(-1)})
        received[self.rank] = mine
        return received

    def all_gather(self, shard_BSC: Tensor, sizes: Sequence[int]) -> Tensor:
        """The shards of all ranks along the tokens, in rank order; rank i holds sizes[i] of them."""
        batch, _, channels = shard_BSC.shape
        shard_BSC = shard_BSC.contiguous()
        shapes = [(batch, size, channels) for size in sizes]
        return torch.cat(self.all_to_all([shard_BSC] * self.degree, shapes), dim=1)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The leader's tensor on every rank; the others pass one of its shape and type, which is filled."""
        if self.leads:
            self._exchange("broadcast", dict.fromkeys(self._peers(1), tensor.contiguous()), {})
        else:
            self._exchange("broadcast", {}, {0: tensor})
        return tensor

    def drop(self) -> None:
        """Let the group go; returns at once, may be called again and from any thread.

        Its sockets close within some ten milliseconds on another thread, and then the peers that wait for this rank
        fail as well. A thread that is inside an exchange here stays there until it ends or its limit is reached.
        """
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            bury(link)

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
        on_device = any(tensor.is_cuda for tensor in (*sends.values(), *receives.values()))
        if not (link.host_only and on_device):
            return link.exchange(sends, receives, self.limit_s)
        arrived = {peer: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for peer, t in receives.items()}
        failure = link.exchange(_to_host(sends), arrived, self.limit_s)
        if failure is None:
            for peer, tensor in receives.items():
                tensor.copy_(arrived[peer], non_blocking=True)
        return failure

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
    """Connect with the other members over the store at this path and try the group once; None for a crew of one.

    `limit_s` bounds one exchange, `first_limit_s` those of the first forward, for which members may have to compile.
    """
    if not 0 <= rank < len(members):
        raise ConfigError(
            f"rank {rank} was asked for in a crew of {len(members)}, whose ranks are 0 to {len(members) - 1}; take the "
            "worker's place among the members."
        )
    if len(members) == 1:
        return None
    if device_kind is DeviceKind.NCCL and not dist.is_nccl_available():
        raise EnvironmentProblem(
            f"group {token} was to be formed over NCCL, which this build of torch does not have; install a CUDA build, "
            "or use gloo."
        )
    group = _connected(token, members, rank, store, device_kind, timeout_s)
    _try_once(group, "cuda" if device_kind is DeviceKind.NCCL else "cpu")
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
        "gave the group up; report it and wait for the agent's next order."
    )


def _try_once(group: CrewGroup, device: str) -> None:
    """One number to and from everybody, to know that each connection ends where it should."""
    numbers = [torch.tensor([_number(group, group.rank, peer)], device=device) for peer in range(group.degree)]
    received = group.all_to_all(numbers, [(1,)] * group.degree)
    wrong = [peer for peer in range(group.degree) if int(received[peer]) != _number(group, peer, group.rank)]
    if wrong:
        group.drop()
        raise CrewBroken(
            f"rank {group.rank} of group {group.token} is connected with someone else than {group.members[wrong[0]]}, "
            "because that sent another group's number; the group is dropped: wait for the agent's next order.",
            group.members[wrong[0]],
        )


def _number(group: CrewGroup, sender: int, receiver: int) -> int:
    return (group.token.epoch * group.degree + sender) * group.degree + receiver


def _to_host(tensors: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Copies in pinned memory, once per tensor however many peers get it; they are complete on return."""
    copies: dict[int, Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in copies:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies[id(tensor)] = host.copy_(tensor, non_blocking=True)
    for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return {peer: copies[id(tensor)] for peer, tensor in tensors.items()}
