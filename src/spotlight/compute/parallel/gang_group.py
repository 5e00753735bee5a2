"""The group of a gang's ranks: formed by epoch at rank 0's store, without a default world, dropped at the first error.

    rank 0:     store, address = open_store(host, port)
    each rank:  gang = form_gang(address, epoch, rank, ranks, ...)  ->  [exchanges]  ->  drop, or RankLost

Invariant: a gang that failed once is never used again, and a failure anywhere reaches every rank: within about a second
over gloo if a process died, because its connections close, and within `limit_s` if it hangs. The same process then
forms the next gang (tests/processes/test_gang_group.py).

Sums are taken in rank order, each piece by one rank, and copied from there. So all ranks hold the same bits, and the
bits depend on neither the transport nor the division into buffers.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from spotlight.compute.parallel.group import CrewBroken, CrewGroup, DeviceKind, check_connections
from spotlight.compute.parallel.links import (
    LOOPBACK,
    ExchangeFailure,
    GlooLink,
    GroupLink,
    NcclLink,
    first_line,
    staged_exchange,
    tear_down,
)
from spotlight.compute.parallel.splits import spans, split_sizes
from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import ConfigError, EnvironmentProblem, RankLost
from spotlight.core.types import NodeId, WorkerId

BUCKET_BYTES = 64 << 20
"""Size of the flat buffers that tensors are exchanged in."""
FORM_LIMIT_S = 60.0
"""Longest wait for the other ranks while a gang forms."""
CONNECT_LIMIT_S = 20.0
"""Longest wait for a connection to a store or a rank that is there; torch may wait 5 s for the name of an address."""
POLL_S = 0.02
"""Time between two looks into the store."""
EXCHANGE_LIMIT_S = 600.0
"""Longest wait of one exchange: a rank may wait for the share of a slower one."""


@dataclass(frozen=True, kw_only=True)
class GangLinks:
    """How the ranks of a gang connect."""

    host: str = LOOPBACK
    """Address of this machine at which the other ranks reach it."""
    port: int = 0
    """Port of rank 0's store; 0: any free one."""
    limit_s: float = EXCHANGE_LIMIT_S
    """Longest wait of one exchange."""
    form_limit_s: float = FORM_LIMIT_S
    """Longest wait for the other ranks while the gang forms."""
    transport: DeviceKind = DeviceKind.GLOO
    even_shares: bool = False
    """Give every rank the same number of rows whatever its speed; deterministic runs need it."""


class GangGroup:
    """One rank of a formed gang; call exchanges from one thread, `drop` and `abort` from any."""

    def __init__(
        self, epoch: int, name: str, rank: int, ranks: int, link: GroupLink, store: Any, links: GangLinks
    ) -> None:
        self.epoch = epoch
        self.name = name
        """Unique name of this gang, equal on all its ranks."""
        self.rank = rank
        self.ranks = ranks
        self.links = links
        self.store = store
        """Keys of this epoch in rank 0's store."""
        self.limit_s = links.form_limit_s
        """Longest wait of one exchange; the first one ends the forming."""
        self._link: GroupLink | None = link
        self._lock = threading.Lock()
        self._device = torch.device("cpu" if link.host_only else "cuda")
        self._crews: list[CrewGroup] = []

    @property
    def is_open(self) -> bool:
        """Whether it can still be used."""
        return self._link is not None

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the ranks, in place."""
        with torch.no_grad():
            for bucket in _buckets(tensors):
                flat = self._flattened(bucket)
                self._sum(flat)
                _scatter_back(flat, bucket)

    def broadcast(self, tensors: Sequence[Tensor], source: int) -> None:
        """Overwrite the tensors with those of rank `source`; all ranks pass the same shapes and types, in order."""
        with torch.no_grad():
            for bucket in _buckets(tensors):
                flat = self._flattened(bucket)
                if self.rank == source:
                    self._exchange("a broadcast", dict.fromkeys(self._peers(), flat), {})
                else:
                    self._exchange("a broadcast", {}, {source: flat})
                    _scatter_back(flat, bucket)

    def gather(self, value: Any) -> list[Any]:
        """Plain values (numbers, strings, bytes, lists, dictionaries) of all ranks, in rank order."""
        mine = torch.frombuffer(bytearray(msgspec.msgpack.encode(value)), dtype=torch.uint8).to(self._device)
        lengths = {peer: torch.zeros(1, dtype=torch.int64, device=self._device) for peer in self._peers()}
        self._meet(torch.tensor([len(mine)], device=self._device), lengths)
        received = {peer: mine.new_empty(int(length)) for peer, length in lengths.items()}
        self._exchange("a gather", dict.fromkeys(self._peers(), mine), received)
        texts = {**received, self.rank: mine}
        return [msgspec.msgpack.decode(texts[rank].cpu().numpy().tobytes()) for rank in range(self.ranks)]

    def crew(self, size: int) -> CrewGroup | None:
        """Crew of `size` ranks in a row that splits sequences; None for a crew of one. All ranks call it together."""
        if self.ranks % size:
            raise ConfigError(
                f"{self.ranks} training ranks cannot be divided into crews of {size}, because every crew needs as many "
                "ranks; set train.sequence_ranks to a divisor of the number of training ranks."
            )
        if size == 1:
            return None
        first = self.rank - self.rank % size
        members = tuple(WorkerId(f"rank {rank}") for rank in range(first, first + size))
        store = PrefixStore(f"crew-{first}", self.store)
        token = GroupToken(NodeId(f"gang-{self.name}"), self.epoch)
        place = self.rank - first
        try:
            link = _linked(store, place, size, self.links)
            crew = CrewGroup(token, members, place, link, self.links.form_limit_s)
            check_connections(crew, self._device.type)
            crew.limit_s = self.links.limit_s
        except (RuntimeError, CrewBroken) as error:
            raise self.lost("the connection of a crew", ExchangeFailure(None, first_line(error))) from None
        self._crews.append(crew)
        return crew

    def drop(self) -> None:
        """Release the gang and its crews; may be called repeatedly and from any thread."""
        with self._lock:
            link, self._link = self._link, None
        for crew in self._crews:
            crew.abort()
        if link is not None:
            link.cut()
            tear_down(link)

    def abort(self) -> None:
        """Fail the exchange under way in another thread, here and at the other ranks, and release the gang."""
        self.drop()

    def lost(self, operation: str, failure: ExchangeFailure) -> RankLost:
        """Drop the gang and return the error of an exchange that failed."""
        self.drop()
        return self._error(operation, failure)

    def _error(self, operation: str, failure: ExchangeFailure) -> RankLost:
        waited = "" if failure.peer is None else f" while it waited for rank {failure.peer}"
        return RankLost(
            f"rank {self.rank} of gang {self.epoch} with {self.ranks} ranks failed in {operation}{waited} "
            f"({failure.problem}), because a rank died, hung or left; the gang is dropped: form the next one.",
            failure.peer,
        )

    def _sum(self, flat: Tensor) -> None:
        """Rank i sums piece i of all ranks, in rank order, and sends the sum to all."""
        pieces = spans(split_sizes(len(flat), self.ranks))
        sizes = [piece.stop - piece.start for piece in pieces]
        mine = pieces[self.rank]
        sends = {peer: flat[pieces[peer]] for peer in self._peers() if sizes[peer]}
        arrived = {peer: torch.empty_like(flat[mine]) for peer in self._peers() if sizes[self.rank]}
        self._exchange("a sum", sends, arrived)
        if sizes[self.rank]:
            arrived[self.rank] = flat[mine].clone()
            total = arrived[0]
            for rank in range(1, self.ranks):
                total += arrived[rank]
            flat[mine] = total
        sums = dict.fromkeys(self._peers() if sizes[self.rank] else (), flat[mine])
        self._exchange("a sum", sums, {peer: flat[pieces[peer]] for peer in self._peers() if sizes[peer]})

    def _flattened(self, bucket: Sequence[Tensor]) -> Tensor:
        """One row of the bucket's numbers, where the link can send them from."""
        target = bucket[0].device if self._device.type == "cpu" else self._device
        return torch.cat([tensor.detach().reshape(-1).to(target) for tensor in bucket])

    def _peers(self) -> list[int]:
        return [(self.rank + distance) % self.ranks for distance in range(1, self.ranks)]

    def _exchange(self, operation: str, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> None:
        failure = self._attempt(sends, receives)
        if failure is not None:
            raise self.lost(operation, failure)

    def _attempt(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> ExchangeFailure | None:
        link = self._link
        if link is None:
            return ExchangeFailure(None, "this rank had dropped the gang")
        return staged_exchange(link, sends, receives, self.limit_s)

    def _meet(self, mine: Tensor, theirs: Mapping[int, Tensor]) -> None:
        """Exchange with every peer in a thread of its own: the death of one is seen while another is still busy."""
        if self.ranks == 2 or self._device.type != "cpu":
            self._exchange("a gather", dict.fromkeys(theirs, mine), theirs)
            return

        failures: list[RankLost] = []

        def attempt(peer: int) -> None:
            failure = self._attempt({peer: mine}, {peer: theirs[peer]})
            if failure is not None:
                failures.append(self._error("a gather", failure))
                # Fails the other attempts.
                self.drop()

        with ThreadPoolExecutor(len(theirs), "gang-meet") as threads:
            list(threads.map(attempt, theirs))
        if failures:
            raise failures[0]


def open_store(host: str = LOOPBACK, port: int = 0) -> tuple[Any, str]:
    """Serve the store of rank 0; returns it, which keeps it open, and its address."""
    try:
        # torch itself would listen on all interfaces.
        with socket.create_server((host, port)) as listening:
            port = listening.getsockname()[1]
            store = TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=CONNECT_LIMIT_S),
                master_listen_fd=listening.detach(),
            )
    except (RuntimeError, ValueError, OSError) as error:
        problem = first_line(error)
    else:
        return store, f"{host}:{store.port}"
    raise EnvironmentProblem(
        f"the training ranks cannot meet at {host}:{port} ({problem}), because rank 0 could not listen there; free "
        "that port, or choose another one or 0 for any."
    )


def form_gang(
    address: str,
    epoch: int,
    rank: int,
    ranks: int,
    links: GangLinks | None = None,
    is_replaced: Callable[[], bool] = lambda: False,
) -> GangGroup:
    """Connect to the other ranks at this store and test the connections; give up as soon as another gang replaces it.

    The ranks first meet in the store, where the wait for one that died can be ended; then they connect at once.
    """
    links = links or GangLinks()
    if not 0 <= rank < ranks or ranks < 2:
        raise ConfigError(
            f"rank {rank} is not in a gang of {ranks}, which has at least two ranks, from 0 on; pass the rank's place "
            "among them."
        )
    check_transport(links.transport)
    gang: GangGroup | None = None
    try:
        host, _, port = address.rpartition(":")
        limit = timedelta(seconds=min(CONNECT_LIMIT_S, links.form_limit_s))
        # A dead store refuses at once here; torch would try again until its limit.
        socket.create_connection((host, int(port)), limit.total_seconds()).close()
        client = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
        store = PrefixStore(f"gang-{epoch}", client)
        if rank == 0:
            store.set("name", f"{epoch}-{secrets.token_hex(4)}")
        store.set(f"here-{rank}", "")
        _meet_in(store, ranks, time.monotonic() + links.form_limit_s, is_replaced)
        name = store.get("name").decode()
        link = _linked(store, rank, ranks, links)
        gang = GangGroup(epoch, name, rank, ranks, link, store, links)
        found = gang.gather([name, rank])
    except (RuntimeError, ValueError, OSError) as error:
        if gang is not None:
            gang.drop()
        problem = first_line(error)
    else:
        if found == [[name, place] for place in range(ranks)]:
            gang.limit_s = links.limit_s
            return gang
        gang.drop()
        problem = "a connection ends at another process"
    raise RankLost(
        f"rank {rank} of gang {epoch} could not connect to the other {ranks - 1} through {address} ({problem}), "
        "because a rank died or was late; form the next gang."
    )


def _meet_in(store: Any, ranks: int, deadline: float, is_replaced: Callable[[], bool]) -> None:
    """Wait until every rank is in the store."""
    missing = list(range(ranks))
    while missing := [rank for rank in missing if not store.check([f"here-{rank}"])]:
        if is_replaced():
            raise RuntimeError("another gang replaces it")
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank {missing[0]} did not come")
        time.sleep(POLL_S)


def check_transport(transport: DeviceKind) -> None:
    """Refuse a transport that this build of torch lacks."""
    if transport is DeviceKind.NCCL and not dist.is_nccl_available():
        raise EnvironmentProblem(
            "the training ranks cannot exchange gradients over nccl, which this build of torch lacks; install a CUDA "
            "build of torch, or use gloo."
        )


def _linked(store: Any, rank: int, ranks: int, links: GangLinks) -> GroupLink:
    if links.transport is DeviceKind.NCCL:
        # The library ends the process at its own limit, so that limit must not come first.
        return NcclLink(store, rank, ranks, 2 * (links.limit_s + links.form_limit_s))
    return GlooLink(store, rank, ranks, min(CONNECT_LIMIT_S, links.form_limit_s), links.host)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type and device, in order, up to the size of a buffer; a larger tensor is alone."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for same in kinds.values():
        bucket: list[Tensor] = []
        for tensor in same:
            if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket


def _scatter_back(flat: Tensor, bucket: Sequence[Tensor]) -> None:
    for tensor, values in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
        tensor.copy_(values.view(tensor.shape))
