"""A node's supervisor process: parent of its workers, owner of its weight cache and judges, receiver of notices.

    python -m spotlight.node.agent --launch FILE

Relays messages between the controller and the workers. It changes only `Result`, to which it adds the score, and
`Load`, in which it sets a path on this node; the worker that wrote those weights receives `Adopt` first. Free of torch.

Invariants (tests/processes/test_pool.py):
- A node is one process group, led by its agent. When the controller, the owner's pipe (stdin) or the nursery is gone,
  the agent kills the group, itself included; when the agent is gone, the nursery does.
- `Gone` of a worker follows all its messages and precedes those of its successor. Only verdicts that take longer than
  VERDICTS_S come later, and do not count.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

import msgspec

from spotlight import __version__
from spotlight.compute.rewards.config import Term
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.crew_messages import AskNeighbour, Crewed, Demand, Offered
from spotlight.core.errors import EnvironmentProblem, RewardError, SpotlightError
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import RequestId, Work
from spotlight.node.crews import NodeCrews
from spotlight.node.group_store import GroupStore
from spotlight.node.judge import VERDICTS_S, Judge, Picture, unpack
from spotlight.node.launch import AgentLaunch, AnyAgentOrder, GiveNotice, KillWorker, spare_device
from spotlight.node.leases import Leases
from spotlight.node.newborn import die_with_parent
from spotlight.node.nursery_client import NurseryClient
from spotlight.node.reward_process import RewardLog, RewardProcess
from spotlight.node.slot import Slot
from spotlight.node.term_judge import unscored
from spotlight.node.weight_cache import WeightCache, Written

log = logging.getLogger("spotlight.agent")
_ORDER = msgspec.json.Decoder(AnyAgentOrder)


class Agent:
    """Waits for the controller, the workers, the pool's orders and its judges; all in one event loop."""

    def __init__(self, launch: AgentLaunch, nursery: NurseryClient, controller: asyncio.StreamWriter) -> None:
        self._launch = launch
        self._nursery = nursery
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self._judge: Judge[Picture] = Judge(
            [(term, self._reward_processes(term)) for term in launch.rewards],
            RewardLog(f"{launch.logs}/{launch.node}.log"),
            lambda awaited: self._spawn(self._to_controller(awaited)),
        )
        self._weights = WeightCache(Path(launch.store), Path(launch.spill), self._warn)
        self._written = Written()
        self._slots = [Slot(number, launch, nursery, self) for number in range(launch.spec.slots)]
        self._leases = Leases()
        self._verdicts: defaultdict[WorkerId, set[asyncio.Task[None]]] = defaultdict(set)
        self._tasks: set[asyncio.Task[None]] = set()
        self._drain = asyncio.Event()
        # Beside the nursery's socket, because a unix socket's path must be short and the store's may be long.
        self._store = GroupStore(Path(launch.nursery).with_name(f"{launch.spec.name}.groups"))
        self._cannot_work: asyncio.Future[str] = self._loop.create_future()
        self._crews = NodeCrews(
            launch.node,
            ElasticConfig.model_validate_json(launch.elastic),
            launch.heads,
            launch.token_pixels,
            str(self._store.path),
            self,
            self._store,
            self._leases.of,
            launch.heartbeat_s,
        )

    async def serve(self, reader: asyncio.StreamReader, orders: asyncio.StreamReader) -> str:
        """Run until the node is drained; return '', or the reason why the node cannot continue."""
        spec = self._launch.spec
        await self._store.start()
        await self._to_controller(
            m.NodeHello(
                schema=SCHEMA,
                code=__version__,
                node=self._launch.node,
                slot_class=spec.slot_class,
                slots=spec.slots,
                zone=spec.zone,
                price=spec.price,
                token=self._launch.token,
            )
        )
        ends = [
            asyncio.create_task(work)
            for work in (
                self._read_controller(reader),
                self._read_orders(orders),
                self._await_nursery_loss(),
                self._await_failure(),
                self._run_slots(),
            )
        ]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        return next(task.result() for task in ends if task in done)

    def drain(self) -> None:
        """Make the workers hand back their samples and exit; then the agent exits."""
        self._drain.set()
        for slot in self._slots:
            slot.drain()

    # -- for the slots -------------------------------------------------------------------------------------------------

    async def receive(self, worker: WorkerId, message: m.AnyMessage, blob: bytes) -> None:
        if self._crews.receive(worker, message) or self._between_neighbours(message, blob):
            return
        if isinstance(message, m.Result):
            task = asyncio.create_task(self._score(worker, message, blob))
            self._verdicts[worker].add(task)
            task.add_done_callback(self._verdicts[worker].discard)
            return
        match message:
            case m.HandBack():
                self._end_lease(worker, message.request, message.attempt)
            case m.Held():
                self._weights.caught_up(worker, message.weights)
            case m.PublishedWeights():
                self._written.wrote(worker, message)
        await self._to_controller(message, worker, blob)

    def started(self) -> None:
        """Request a spare process when every worker is up, because its imports would delay their start."""
        if not self._drain.is_set() and not any(slot.is_starting for slot in self._slots):
            log_file = Path(self._launch.logs) / f"{self._launch.node}-spare.log"
            self._spawn(self._nursery.keep_spare(spare_device(self._launch.devices), log_file))

    def died(self, worker: WorkerId, why: str) -> None:
        self._crews.died(worker, why)

    async def gone(self, worker: WorkerId, cause: str) -> None:
        """Report the end of a worker after its pending verdicts, so that finished samples are not repeated."""
        pending = self._verdicts.pop(worker, set())
        if pending:
            await asyncio.wait(pending, timeout=VERDICTS_S)
        self._leases.gone(worker)
        # Repeated: its Hello may have been relayed after its process had ended.
        self._crews.died(worker, cause)
        self._weights.gone(worker)
        self._written.gone(worker)
        log.info("worker %s is gone: %s", worker, cause)
        await self._to_controller(m.Gone(worker=worker, cause=cause))

    def current_loads(self) -> Sequence[m.Load]:
        return self._weights.current()

    def _between_neighbours(self, message: m.AnyMessage, blob: bytes) -> bool:
        """Pass on a newcomer's request for weights, or a holder's reply; True if the message was one of these."""
        match message:
            case AskNeighbour():
                holder = self._crews.holder(message.weights, message.newcomer)
                no_offer = Offered(weights=message.weights, newcomer=message.newcomer)
                self.send(*((holder, message) if holder is not None else (message.newcomer, no_offer)))
            case Offered():
                self.send(message.newcomer, message, blob)
            case _:
                return False
        return True

    # -- for the crews -------------------------------------------------------------------------------------------------

    def send(self, worker: WorkerId, message: m.AnyMessage, blob: bytes = b"") -> None:
        for slot in self._slots:
            if slot.worker == worker:
                slot.send(message, blob)

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        for slot in self._slots:
            if slot.worker == worker:
                self._spawn(slot.kill(why))

    def report(self, crewed: Crewed) -> None:
        self._spawn(self._to_controller(crewed))

    # -- tasks of `serve`; each returns why the node cannot continue, '' after a drain ---------------------------------

    async def _read_controller(self, reader: asyncio.StreamReader) -> str:
        while (frame := await wire.read(reader)) is not None:
            envelope, blob = frame
            match envelope.message:
                case m.Rejected(reason=reason):
                    return reason
                case m.Drain() if envelope.worker is None:
                    self.drain()
                case m.Load() as load:
                    self._announce(load, envelope.worker)
                case Demand() as demand:
                    self._crews.demand(demand)
                case message:
                    self._relay(envelope.worker, message, blob)
        return "the controller is gone"

    async def _read_orders(self, orders: asyncio.StreamReader) -> str:
        while line := await orders.readline():
            match _ORDER.decode(line):
                case GiveNotice(kind=kind, seconds=seconds):
                    self._crews.warned(kind, seconds)
                    await self._to_controller(m.Warned(kind=kind, seconds=seconds))
                case KillWorker(worker=worker):
                    for slot in self._slots:
                        if slot.worker == worker:
                            await slot.kill()
        return "the owner of the node is gone"

    async def _await_nursery_loss(self) -> str:
        await self._nursery.lost.wait()
        return "the nursery is gone"

    async def _await_failure(self) -> str:
        return await self._cannot_work

    async def _run_slots(self) -> str:
        """Run the slots until drained: every worker has exited and every verdict is sent."""
        keeping = [asyncio.create_task(slot.keep()) for slot in self._slots]
        draining = asyncio.create_task(self._drain.wait())
        broken, _ = await asyncio.wait([draining, *keeping], return_when=asyncio.FIRST_COMPLETED)
        for task in broken:
            task.result()
        _, late = await asyncio.wait(keeping, timeout=self._launch.drain_s)
        if late:
            log.warning(
                "%d workers did not exit within %g s of the drain and are killed", len(late), self._launch.drain_s
            )
            for slot in self._slots:
                await slot.kill()
            await asyncio.wait(late)
        await self._judge.close()
        return ""

    # -- messages, leases, weights and scores --------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _to_controller(self, message: m.AnyMessage, worker: WorkerId | None = None, blob: bytes = b"") -> None:
        wire.write(self._controller, m.Envelope(worker, message), blob)
        # The connection's reader reports its loss.
        with contextlib.suppress(ConnectionError):
            await self._controller.drain()

    def _relay(self, worker: WorkerId | None, message: m.AnyMessage, blob: bytes) -> None:
        """Send to one worker, or to all for None; a worker that is gone is skipped."""
        for slot in self._slots:
            if slot.worker is None or worker not in (None, slot.worker):
                continue
            self._leases.observe(slot.worker, message)
            if isinstance(message, m.Load):
                self._crews.dropped((message.weights, *message.keep))
            slot.send(message, blob)
        self._crews.changed()

    def _end_lease(self, worker: WorkerId, request: RequestId, attempt: int) -> m.Granted | None:
        granted = self._leases.ended(worker, request, attempt)
        self._crews.changed()
        return granted

    def _workers(self) -> list[WorkerId]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def _announce(self, load: m.Load, worker: WorkerId | None) -> None:
        at_once = self._written.announced(load)
        if at_once is not None:
            self.send(*at_once)
        self._spawn(self._load(load, worker))

    async def _load(self, load: m.Load, worker: WorkerId | None) -> None:
        """Copy and relay announced weights; a node that cannot store them reports why and ends, and is restarted."""
        try:
            local = await self._weights.take(load, self._workers)
        except SpotlightError as error:
            await self._to_controller(m.Failed(problem=str(error), exit_code=error.exit_code))
            if not self._cannot_work.done():
                self._cannot_work.set_result(str(error))
            return
        finally:
            self._written.arrived(load)
        if local is not None:
            self._relay(worker, local, b"")

    def _reward_processes(self, term: Term) -> list[RewardProcess]:
        """The second judge runs in the processes of the first reward."""
        second = self._launch.judge if term is self._launch.rewards[0] else None
        judge = second.name if second is not None else None
        return [RewardProcess(term, judge, self._warn) for _ in range(term.processes)]

    def _warn(self, problem: str) -> None:
        """Log a problem and send it to the controller; the copying and scoring threads call this."""
        log.warning("%s", problem)
        asyncio.run_coroutine_threadsafe(self._to_controller(m.Noted(problem=problem)), self._loop)

    async def _score(self, worker: WorkerId, result: m.Result, blob: bytes) -> None:
        """Score a result and send it with its training tensors, or else the picture; a preview sends the score only."""
        granted = self._end_lease(worker, result.request, result.attempt)
        try:
            parcel = unpack(blob)
        except RewardError as error:
            verdict = unscored(str(error))
        else:
            if granted is None:
                verdict = unscored(f"node {self._launch.node} holds no lease of this sample, so its prompt is unknown.")
            else:
                is_judged = self._launch.is_judged(granted.request)
                verdict = await self._judge.judge(Picture(parcel.image, granted.prompt, is_judged))
            if parcel.payload is not None:
                blob = parcel.payload
        if granted is not None and granted.request.work is Work.PREVIEW:
            blob = b""
        problem = "; ".join(filter(None, (result.problem, verdict.problem)))
        await self._to_controller(msgspec.structs.replace(result, score=verdict.score, problem=problem), worker, blob)


async def _run(launch: AgentLaunch) -> NoReturn:
    try:
        reader, writer = await asyncio.open_unix_connection(launch.controller, limit=wire.STREAM_LIMIT)
        nursery = await NurseryClient.connect(Path(launch.nursery))
    except OSError as error:
        raise EnvironmentProblem(
            f"node {launch.node} cannot reach the controller at {launch.controller} or the nursery at {launch.nursery} "
            f"({error}), so it has no work; start them first."
        ) from error
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    agent = Agent(launch, nursery, writer)
    loop.add_signal_handler(signal.SIGTERM, agent.drain)
    end = await agent.serve(reader, orders)
    if end:
        _end_node(launch.node, end)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    logging.shutdown()
    # Exit at once: the nursery kills the group when this connection ends, which would look like a crash.
    os._exit(0)


def _end_node(node: NodeId, why: str) -> NoReturn:
    """Kill all processes of the node, this one included, without waiting for anything."""
    log.error("node %s ends: %s", node, why)
    logging.shutdown()
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("a process outlived its SIGKILL")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launch", type=Path, required=True, help="JSON file with the AgentLaunch")
    options = parser.parse_args(arguments)
    die_with_parent()
    # The tracker stays outside the group, so that it outlives the node and frees the judges' semaphores.
    resource_tracker.ensure_running()
    os.setpgrp()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    launch = msgspec.json.decode(options.launch.read_bytes(), type=AgentLaunch)
    try:
        asyncio.run(_run(launch))
    except SpotlightError as error:
        _end_node(launch.node, str(error))
    except Exception:
        log.exception("the agent failed")
        _end_node(launch.node, "its agent failed, see above")


if __name__ == "__main__":
    main()
