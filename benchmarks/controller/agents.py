"""Agents that compute nothing: each pulls, commits and returns samples for one worker over its own connection."""

import argparse
import asyncio
import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.controller.controller_process import DIGEST, TOKEN
from spotlight import __version__
from spotlight.compute.rollout.seal import OPENING, UNSEALED, with_seal
from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.node.blob_store import BlobStore
from spotlight.node.controller_link import ControllerLink
from spotlight.node.unloading import stored_sample

HEARTBEAT_S = 0.5
GRACE_S = 20.0


@dataclass(frozen=True)
class Pacing:
    """How an agent's worker computes."""

    rows: int
    step_s: float
    payload: bytes
    store: BlobStore


class BenchAgent:
    """One node with one worker."""

    def __init__(self, number: int, address: str, pacing: Pacing) -> None:
        self._node = NodeId(f"spot-{number}.1")
        self._worker = WorkerId(f"{self._node}/0.1")
        self._pacing = pacing
        self._drawn = random.Random(number)
        """Steps vary, so that messages come one by one and not in bursts of all agents."""
        hello = m.NodeHello(
            schema=SCHEMA, code=__version__, node=self._node, slot_class=SlotClass.SPOT, slots=1, token=TOKEN
        )
        self._link = ControllerLink(address, hello, GRACE_S)
        self._progress: dict[str, m.Progress] = {}
        self._grants = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        await self._link.connect()
        self._send(
            m.Hello(
                schema=SCHEMA,
                code=__version__,
                node=self._node,
                slot_class=SlotClass.SPOT,
                rows=self._pacing.rows,
                pid=1,
            )
        )
        beating = asyncio.create_task(self._beat())
        async for envelope, _ in self._link.frames():
            match envelope.message:
                case m.Load() as load:
                    self._send(m.Held(weights=load.weights, digest=load.digest))
                    self._send(m.Pull(free_rows=self._pacing.rows, answered=self._grants))
                case m.Grant() as grant:
                    self._grants += 1
                    task = asyncio.create_task(self._make(grant))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        beating.cancel()

    def _send(self, message: m.AnyMessage, blob: bytes = b"") -> None:
        self._link.send(message, self._worker, blob)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._send(m.Alive(progress=tuple(self._progress.values())))

    async def _make(self, grant: m.Grant) -> None:
        """Take all steps of a grant, with its commits, and return its samples."""
        steps = grant.leases[0].request.sample.sampling.steps
        every = grant.leases[0].commit_every
        for step in range(1, steps + 1):
            await asyncio.sleep(self._pacing.step_s * self._drawn.uniform(0.8, 1.2))
            for lease in grant.leases:
                request = lease.request.id
                self._progress[request] = m.Progress(request, lease.attempt, step)
                if every and step % every == 0 and step < steps:
                    self._commit(lease, step, every)
        for lease in grant.leases:
            self._progress.pop(lease.request.id)
            await self._return(lease, steps)
        await self._link.drained()
        self._send(m.Pull(free_rows=self._pacing.rows, row_steps_per_s=self._speed, answered=self._grants))

    @property
    def _speed(self) -> float | None:
        return self._pacing.rows / self._pacing.step_s if self._pacing.step_s else None

    def _commit(self, lease: m.Granted, step: int, every: int) -> None:
        request, attempt = lease.request.id, lease.attempt
        flight = BlobRef(kind=BlobKind.FLIGHT, path=self._node, digest="", size=1, offset=step)
        self._send(m.Commit(request=request, attempt=attempt, step=step, since=step - every, flight=flight))

    async def _return(self, lease: m.Granted, steps: int) -> None:
        request, score = lease.request.id, m.Score(reward=0.5)
        result = m.Result(request=request, attempt=lease.attempt, digest=DIGEST, steps=steps, score=score)
        payload, store = self._pacing.payload, self._pacing.store
        ref = await asyncio.to_thread(stored_sample, result, payload, lambda: b"", store)
        self._send(msgspec.structs.replace(result, payload=ref))


def _sealed(size: int) -> bytes:
    """Bytes with a valid seal, as a worker's tensors have."""
    blank = bytes(8) + OPENING + UNSEALED
    blank += bytes(max(0, size - len(blank)))
    return with_seal(blank)


async def _run(options: argparse.Namespace) -> None:
    payload = _sealed(int(options.payload_mb * 1e6))
    pacing = Pacing(options.rows, options.step_s, payload, BlobStore(options.folder))
    agents = [BenchAgent(number, options.address, pacing) for number in range(1, options.agents + 1)]
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*(agent.live() for agent in agents))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--address", required=True)
    arguments.add_argument("--agents", type=int, required=True)
    arguments.add_argument("--rows", type=int, default=8)
    arguments.add_argument("--step-s", type=float, default=0.0)
    arguments.add_argument("--payload-mb", type=float, default=0.1)
    arguments.add_argument("--folder", type=Path, required=True)
    asyncio.run(_run(arguments.parse_args()))


if __name__ == "__main__":
    main()
