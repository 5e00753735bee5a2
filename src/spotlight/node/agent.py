"""A node's supervisor process: parent of its workers, owner of its weight cache and judges, receiver of notices.

    python -m spotlight.node.agent --launch FILE

`AgentCore` has its decisions; this module has its sockets, processes and files. Free of torch.

Invariant (tests/processes/test_pool.py): a node is one process group, led by its agent. When the controller, the
owner's pipe (stdin) or the nursery is gone, the agent kills the group, itself included; when the agent is gone, the
nursery does.
"""

import argparse
import asyncio
import io
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

import msgspec
from PIL import Image as PilImage

from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Image
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.errors import EnvironmentProblem, SpotlightError, Stopped
from spotlight.core.types import NodeId, WorkerId
from spotlight.node.agent_core import AgentCore
from spotlight.node.agent_effects import Scoring
from spotlight.node.blob_store import BlobStore
from spotlight.node.controller_link import ControllerLink
from spotlight.node.far_node import FarNode
from spotlight.node.group_store import GroupStore
from spotlight.node.judge import Judge, Picture, unpack
from spotlight.node.launch import AgentLaunch, AnyAgentOrder, DrainNode, GiveNotice, KillWorker, spare_device
from spotlight.node.newborn import die_with_parent
from spotlight.node.notices.notice import POOL, Notice
from spotlight.node.notices.notice_sources import node_notices
from spotlight.node.nursery_client import NurseryClient
from spotlight.node.paced.paced_files import PacedFiles
from spotlight.node.reward_process import RewardLog, RewardProcess
from spotlight.node.unloading import NearStore, Puts, stored_sample
from spotlight.node.weight_cache import NearFiles, WeightCache
from spotlight.node.worker_process import WorkerProcess

log = logging.getLogger("spotlight.agent")
_ORDER = msgspec.json.Decoder(AnyAgentOrder)


class Agent:
    """Drives an `AgentCore`; waits for the controller, the workers, the pool's orders and its judges, in one loop."""

    def __init__(
        self, launch: AgentLaunch, nursery: NurseryClient, controller: ControllerLink, far: FarNode | None = None
    ) -> None:
        """`far` is set where the run's folder is on another machine."""
        self._launch = launch
        self._nursery = nursery
        self._controller = controller
        self._loop = asyncio.get_running_loop()
        self._judge: Judge[Picture] = Judge(
            [(term, self._reward_processes(term)) for term in launch.rewards],
            RewardLog(f"{launch.logs}/{launch.node}.log"),
            partial(self.report, None),
        )
        files = NearFiles(Path(launch.home)) if far is None else far.files
        self._weights = WeightCache(
            Path(launch.store),
            Path(launch.spill),
            PacedFiles(files, launch.copy_s) if launch.copy_s else files,
            self._warn,
        )
        self._processes: dict[WorkerId, WorkerProcess] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Beside the nursery's socket, because a unix socket's path must be short and the store's may be long.
        self._store = GroupStore(Path(launch.nursery).with_name(f"{launch.spec.name}.groups"))
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._far = far
        if far is not None:
            far.store.refused = self.end
        near = BlobStore(Path(launch.home), launch.node)
        self._blobs: Puts = near if far is None else far.store
        settings = launch.node_settings(str(self._store.path))
        flights = NearStore(near) if far is None else far.store
        self._core = AgentCore(settings, self, self._store, flights, self._loop)

    async def serve(self, orders: asyncio.StreamReader) -> str:
        """Run until the node is drained; return '', or the reason why the node cannot continue."""
        await self._store.start()
        if self._far is not None:
            await self._far.mirror.prepare()
        self._core.begin()
        ends: list[asyncio.Future[str]] = [
            asyncio.create_task(self._read_controller()),
            asyncio.create_task(self._read_orders(orders)),
            asyncio.create_task(self._await_nursery_loss()),
            asyncio.create_task(self._read_notices()),
            self._end,
        ]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        why = next(end.result() for end in ends if end in done)
        if not why:
            await self._judge.close()
        return why

    def drain(self) -> None:
        """Make the workers hand back their samples and exit; then the agent exits."""
        self._core.drain()

    # -- effects of the core -------------------------------------------------------------------------------------------

    def report(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        self._controller.send(message, worker)

    def start_worker(self, slot: int, worker: WorkerId) -> None:
        self._spawn(self._run_worker(slot, worker))

    def kill_worker(self, worker: WorkerId) -> None:
        if worker in self._processes:
            self._spawn(self._processes[worker].kill(self._nursery))

    def is_relaying(self, worker: WorkerId) -> bool:
        return worker in self._processes and self._processes[worker].is_relaying

    def open(self, blob: bytes) -> tuple[Image, bytes]:
        parcel = unpack(blob)
        return parcel.image, parcel.payload or b""

    def score(self, scoring: Scoring, granted: m.Granted, picture: Image) -> None:
        self._spawn(self._score(scoring, Picture(picture, granted.prompt, self._launch.is_judged(granted.request))))

    def copy(self, load: m.Load) -> None:
        self._spawn(self._copy(load))

    def delete(self, path: str) -> None:
        self._weights.delete(path)

    def spoil(self, path: str) -> None:
        self._weights.spoil(path)

    def all_started(self) -> None:
        """Request a spare process only now, because its imports would delay the start of workers."""
        log_file = Path(self._launch.logs) / f"{self._launch.node}-spare.log"
        self._spawn(self._nursery.keep_spare(spare_device(self._launch.devices), log_file))

    def end(self, why: str) -> None:
        if not self._end.done():
            self._end.set_result(why)

    # -- tasks of `serve`; each returns why the node cannot continue ---------------------------------------------------

    async def _read_controller(self) -> str:
        async for envelope, blob in self._controller.frames():
            match envelope.message:
                case joins.KillOrder(worker=worker):
                    self.kill_worker(worker)
                case joins.NoticeOrder(kind=kind, seconds=seconds):
                    self._core.warned(Notice(kind=kind, source=POOL, deadline=self._loop.time() + seconds))
                case joins.Leave() as leave:
                    self._launch.farewell.write_bytes(msgspec.json.encode(leave))
                    return leave.reason
                case message:
                    self._core.from_controller(envelope.worker, message, blob)
        return self._controller.end

    async def _read_orders(self, orders: asyncio.StreamReader) -> str:
        while line := await orders.readline():
            match _ORDER.decode(line):
                case GiveNotice(kind=kind, seconds=seconds):
                    self._core.warned(Notice(kind=kind, source=POOL, deadline=self._loop.time() + seconds))
                case KillWorker(worker=worker):
                    self.kill_worker(worker)
                case DrainNode():
                    self.drain()
        return "the owner of the node is gone"

    async def _read_notices(self) -> str:
        async with aclosing(node_notices(self._launch.notices_config(), RealClock())) as notices:
            async for notice in notices:
                log.info("%s notice of %s%s", notice.kind, notice.source, " withdrawn" if notice.withdrawn else "")
                self._core.warned(notice)
        return "the watch of notices ended"

    async def _await_nursery_loss(self) -> str:
        await self._nursery.lost.wait()
        return "the nursery is gone"

    # -- tasks of effects ----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._end.done():
            self._end.set_exception(error)

    async def _run_worker(self, slot: int, worker: WorkerId) -> None:
        process = self._processes[worker] = WorkerProcess(worker, self._core, self._controller.drained)
        try:
            await process.run(slot, self._launch, self._nursery)
        finally:
            del self._processes[worker]

    async def _score(self, scoring: Scoring, picture: Picture) -> None:
        """The tensors are stored, by a thread, while the picture is scored."""
        png = partial(_png, picture.image)
        storing = asyncio.to_thread(stored_sample, scoring.result, scoring.tensors, png, self._blobs)
        verdict, stored = await asyncio.gather(self._judge.judge(picture), storing, return_exceptions=True)
        if isinstance(verdict, BaseException):
            raise verdict
        match stored:
            case Stopped():
                self._core.cannot_store(stored)
            case BaseException():
                raise stored
            case _:
                result = msgspec.structs.replace(scoring.result, payload=stored)
                self._core.judged(scoring._replace(result=result), verdict)

    async def _copy(self, load: m.Load) -> None:
        try:
            local = await self._weights.copy(load, lambda: self._core.is_wanted(load.weights))
        except SpotlightError as error:
            self._core.copied(load, error)
        else:
            self._core.copied(load, local)

    def _reward_processes(self, term: Term) -> list[RewardProcess]:
        """The second judge runs in the processes of the first reward."""
        second = self._launch.judge if term is self._launch.rewards[0] else None
        judge = second.name if second is not None else None
        return [RewardProcess(term, judge, self._warn) for _ in range(term.processes)]

    def _warn(self, problem: str) -> None:
        """Log a problem and send it to the controller; the copying and scoring threads call this."""
        log.warning("%s", problem)
        self._loop.call_soon_threadsafe(self.report, None, m.Noted(problem=problem))


def _png(image: Image) -> bytes:
    file = io.BytesIO()
    PilImage.fromarray(image).save(file, "PNG")
    return file.getvalue()


async def _run(launch: AgentLaunch) -> NoReturn:
    far = await FarNode.open(launch) if launch.blobs else None
    # Of a node that other processes of the run's own machine simulate, the machine's age says nothing.
    age_s = 0.0 if far is None else time.clock_gettime(time.CLOCK_BOOTTIME)
    hello = launch.node_settings("", None if far is None else far.serves, age_s).hello()
    controller = ControllerLink(launch.controller, hello, launch.grace_s, launch.fingerprint)
    try:
        nursery = await NurseryClient.connect(Path(launch.nursery))
        await controller.connect()
    except (OSError, TimeoutError) as error:
        raise EnvironmentProblem(
            f"node {launch.node} cannot reach the controller at {launch.controller} or the nursery at {launch.nursery} "
            f"({error}), so it has no work; start them first."
        ) from error
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    agent = Agent(launch, nursery, controller, far)
    # Until the source `sigterm`, if the settings name it, takes the signal for a notice.
    loop.add_signal_handler(signal.SIGTERM, agent.drain)
    end = await agent.serve(orders)
    if end:
        _end_node(launch.node, end)
    await controller.close()
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
