"""Orders that the ranks of a gang carry out (see gang_processes.py); imported once, by the fork server."""

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from gang_processes import Raised
from gang_training import TrainerRank

from spotlight.compute.parallel import gang_group
from spotlight.compute.parallel.gang_group import GangGroup, GangLinks, form_gang, open_store
from spotlight.compute.parallel.links import wait_for_teardown
from spotlight.core.errors import SpotlightError

# Before any kernel runs, so that no thread pool exists when a rank is forked.
torch.set_num_threads(1)


class Member(TrainerRank):
    """A process with its gang and its trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.gang: GangGroup | None = None
        self._store: Any = None
        made = (self.open_for, self.join, self.enter, self.leave, self.summed, self.broadcast, self.gather)
        made += (self.crew_sum, self.sum_with_abort_after, self.die_inside_a_sum, self.use_again, self.footprint)
        self.orders |= {order.__name__: order for order in made}

    def open_for(self, links: dict[str, Any]) -> str:
        chosen = GangLinks(**links)
        self._store, address = open_store(chosen.host, chosen.port)
        return address

    def join(self, address: str, epoch: int, rank: int, ranks: int, links: dict[str, Any]) -> tuple[int, int]:
        if self.gang is not None:
            self.gang.drop()
        self.gang = form_gang(address, epoch, rank, ranks, GangLinks(**links))
        return self.gang.rank, self.gang.ranks

    def enter(self, is_even: bool = True) -> None:
        """Let the trainer join the gang."""
        self.train_in(self.gang, is_even)

    def leave(self) -> None:
        """Let the trainer work alone."""
        self.train_in(None)

    def summed(self, sizes: list[int], dtype: str, bucket_bytes: int = gang_group.BUCKET_BYTES) -> list[bytes]:
        """Sums of random tensors that depend on the rank, of two types and in buffers of this size."""
        gang_group.BUCKET_BYTES = bucket_bytes
        generator = torch.Generator().manual_seed(self.gang.rank)
        tensors = [torch.randn(size, generator=generator).to(getattr(torch, dtype)) for size in sizes]
        tensors.append(torch.full((3,), self.gang.rank + 1))
        tensors.append(torch.randn(4, 6, generator=generator).t())
        self.gang.all_reduce(tensors)
        return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]

    def broadcast(self, source: int) -> list[list[float]]:
        tensors = [torch.full((5,), float(self.gang.rank)), torch.full((2, 2), self.gang.rank)]
        self.gang.broadcast(tensors, source)
        return [tensor.flatten().tolist() for tensor in tensors]

    def gather(self, value: Any) -> list[Any]:
        return self.gang.gather([self.gang.rank, value])

    def crew_sum(self, size: int) -> list[float] | None:
        crew = self.gang.crew(size)
        if crew is None:
            return None
        parts = [torch.full((2,), float(self.gang.rank))] * size
        return [float(part[0]) for part in crew.all_to_all(parts, [(2,)] * size)]

    def sum_with_abort_after(self, seconds: float) -> Any:
        threading.Timer(seconds, self.gang.abort).start()
        return self.gang.gather("here")

    def die_inside_a_sum(self, sizes: list[int]) -> None:
        """Send the first half of a sum of such tensors, and die in the second."""
        real, calls = self.gang._attempt, [0]

        def attempt(sends: Any, receives: Any) -> Any:
            calls[0] += 1
            if calls[0] == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(sends, receives)

        self.gang._attempt = attempt
        # The tensors of `summed`, in type and size.
        self.gang.all_reduce(
            [*(torch.ones(size) for size in sizes), torch.ones(3, dtype=torch.int64), torch.ones(4, 6)]
        )

    def use_again(self) -> Any:
        return self.gang.gather("again")

    def footprint(self) -> tuple[int, int]:
        self.gang.drop()
        assert wait_for_teardown(10)
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def serve(link: Connection) -> None:
    """Carry out orders until the test ends."""
    member = Member()
    while True:
        try:
            order, arguments = link.recv()
        except EOFError:
            os._exit(0)
        began = time.monotonic()
        try:
            link.send(member.orders[order](*arguments[0], **arguments[1]))
        except SpotlightError as error:
            waited = getattr(error, "waited_for", None)
            link.send(Raised(type(error).__name__, str(error), waited, time.monotonic() - began))
