"""One slot's persistent process: pulls work, denoises step by step, commits, and trains if its slot has that role.

`WorkerCore` decides, and this process carries its effects out. Five threads: the main thread owns the model; the
control thread reads messages and ends the process when the agent is gone; the heartbeat thread sends Alive; neither
touches the model. While the next steps run, the sender thread decodes and sends finished samples, and the commit thread
stores and sends flights, so that a commit waits for no picture.
"""

import contextlib
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.numpy import save

from spotlight import __version__
from spotlight.compute.parallel.group import CrewBroken, DeviceKind, form
from spotlight.compute.rollout.engine import Engine, Finished, decode_images
from spotlight.compute.train.training_core import failure_reply
from spotlight.compute.weights.store import NodeStore
from spotlight.core import messages as m
from spotlight.core.errors import RankLost, RestartNeeded, Stopped, describe, exit_code_of
from spotlight.core.events import SCHEMA
from spotlight.core.types import WorkerId
from spotlight.core.wire import Connection, Disconnected
from spotlight.core.work import Activity, Policy, RequestId, Work
from spotlight.node.blob_store import BlobStore
from spotlight.node.crew_links import CrewLinks, problem_of
from spotlight.node.equipment import Equip, Equipment, equip
from spotlight.node.judge import IMAGE, PAYLOAD
from spotlight.node.launch import WorkerLaunch
from spotlight.node.loading_core import KeepOwn, LoadingCore, OfferHeld, ReadHeld, TakeOffered, TakeOwn, TakeStored
from spotlight.node.membership import Connect, CrewProblem, Follow, Membership
from spotlight.node.neighbours import WeightCopies
from spotlight.node.spans import SpanLog
from spotlight.node.unloading import CommitFrame, post_commits
from spotlight.node.worker_core import (
    ACTIVITIES,
    ORDERED,
    CommittedRow,
    Effect,
    Exit,
    Obey,
    RunStep,
    StepDone,
    TrainingOrder,
    Wait,
    WorkerCore,
)
from spotlight.node.worker_settings import WorkerSettings

STALLED_S = 300.0
"""A main loop without an iteration for this long is hung: heartbeats stop, and the agent kills the worker."""


def entry(worker: WorkerId, sock: socket.socket, config: bytes) -> None:
    """Entry point of a forked worker."""
    launch = WorkerLaunch.from_bytes(config)
    torch.set_num_threads(launch.threads)
    settings = WorkerSettings.model_validate_json(launch.settings)
    Worker(worker, Connection(sock), launch, settings, equip).run()


class Worker:
    """The worker process; `run` returns only by exit."""

    def __init__(
        self, worker: WorkerId, connection: Connection, launch: WorkerLaunch, settings: WorkerSettings, equip: Equip
    ) -> None:
        self._id = worker
        self._connection = connection
        self._launch = launch
        self._settings = settings
        self._equip = equip
        self._inbox: queue.SimpleQueue[tuple[m.AnyMessage, bytes]] = queue.SimpleQueue()
        self._spans = SpanLog()
        self._hello_sent = threading.Event()
        self._next: tuple[m.AnyMessage, bytes] | None = None
        """A message that ended a wait and is not applied yet."""
        self._last_effect = time.monotonic()
        self._sender = ThreadPoolExecutor(1, "sender")
        self._committer = ThreadPoolExecutor(1, "committer")
        self._store = BlobStore(Path(launch.home), worker) if launch.home else None

    def run(self) -> None:
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        try:
            with self._spans.doing(Activity.START):
                self._build()
            life, completion = self._core.live(), None
            while True:
                effect = life.send(completion)
                self._last_effect = time.monotonic()
                self._hello_sent.set()
                completion = self._perform(effect)
        except Disconnected:
            os._exit(0)
        except Exception as error:
            # The slot's next worker would fail in the same way: the controller counts failures and stops the run.
            with contextlib.suppress(Disconnected):
                self.send(m.Failed(problem=describe(error), fatal=True, exit_code=exit_code_of(error)))
            raise

    # -- the model's thread --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        equipment = self._equip(self._launch, self._settings, self.send)
        self._adapter, self._role, self._engine = equipment.adapter, equipment.role, equipment.engine
        resident = self._resident = equipment.resident
        self._copies = WeightCopies(resident, NodeStore(Path(self._launch.store)), self._trained)
        connect = partial(
            form,
            device_kind=DeviceKind(self._launch.transport),
            limit_s=self._launch.exchange_s,
            first_limit_s=self._launch.first_exchange_s,
        )
        self._crew = CrewLinks(self._engine, resident, equipment.shared, connect)
        self._core = self._made_core(equipment)

    def _made_core(self, equipment: Equipment) -> WorkerCore:
        launch = self._launch
        hello = m.Hello(
            schema=SCHEMA,
            code=__version__,
            node=launch.node,
            slot_class=launch.slot_class,
            rows=self._engine.rows,
            pid=os.getpid(),
            trains=launch.trains,
            kind=equipment.kind,
            kernels=equipment.kernels,
        )
        crew = Membership(self._id, self._crew, self.send, launch.patience_s, time.monotonic)
        loading = LoadingCore(self._id, self._copies, self.send, self._resident.copies_sets, time.monotonic)
        return WorkerCore(self._id, hello, _EngineRows(self._engine), crew, loading, self)

    # -- links of the core ---------------------------------------------------------------------------------------------

    def take(self) -> tuple[m.AnyMessage, bytes] | None:
        arrived, self._next = self._next, None
        if arrived is None and not self._inbox.empty():
            return self._inbox.get()
        return arrived

    def send(self, message: m.AnyMessage, blob: bytes = b"") -> None:
        self._connection.send(m.Envelope(self._id, message), blob)

    def commit(self, commits: Sequence[CommitFrame]) -> None:
        self._submit(self._committer, post_commits, commits, self._store, self.send)

    def deliver(self, finished: Sequence[Finished]) -> None:
        self._submit(self._sender, self._decode, finished)

    # -- effects of the core, on the model's thread --------------------------------------------------------------------

    def _perform(self, effect: Effect) -> object:
        match effect:
            case RunStep():
                return self._step()
            case Wait(seconds=seconds):
                self._wait(seconds)
            case Connect(order=order, rank=rank):
                return self._crew.connect(order, rank)
            case Follow(forward=forward):
                with self._spans.doing(Activity.ROLLOUT if forward.is_exact else Activity.PREVIEW):
                    return self._crew.follow(forward)
            case KeepOwn() | TakeOwn() | TakeOffered() | TakeStored():
                with self._spans.doing(Activity.LOAD):
                    return self._copies.perform(effect)
            case ReadHeld() | OfferHeld():
                return self._copies.perform(effect)
            case Obey(order=ordered):
                return self._obey(ordered)
            case Exit():
                self._exit()
        return None

    def _wait(self, seconds: float | None) -> None:
        with self._spans.doing(Activity.IDLE), contextlib.suppress(queue.Empty):
            self._next = self._inbox.get(timeout=seconds)

    def _step(self) -> StepDone | CrewProblem:
        began = time.monotonic()
        try:
            boundary = self._engine.step()
        except CrewBroken as error:
            return problem_of(error)
        ended = time.monotonic()
        if boundary.work is not None:
            self._spans.record(ACTIVITIES[boundary.work], began, ended)
        seconds = ended - began if boundary.is_typical else 0.0
        return StepDone(boundary.rows, seconds, boundary.finished, boundary.commits)

    def _obey(self, order: TrainingOrder) -> m.AnyMessage | None:
        role = self._role
        assert role is not None
        reply: m.AnyMessage | None
        try:
            with self._spans.doing(ORDERED[type(order)]):
                reply = role.form(order) if isinstance(order, m.FormGang) else role.obey(order)
        except RestartNeeded as error:
            # A share of the weights cannot join another gang; the next process of this slot can.
            sys.stderr.write(f"{error}\n")
            os._exit(0)
        except RankLost as error:
            # This process is well and keeps its state; the controller forms the next gang.
            sys.stderr.write(f"{error}\n")
            if not role.rolls_out:
                os._exit(0)
            reply = failure_reply(error, self._core.epoch)
        except Exception as error:
            # Reported instead of raised: out of memory or a full disk would kill the next gang in the same way.
            traceback.print_exc()
            reply = failure_reply(error, self._core.epoch)
        self._core.rolls_out = role.rolls_out
        if isinstance(order, m.FormGang) and not role.rolls_out:
            self._resident.release()
        return reply

    def _trained(self, policy: Policy) -> Mapping[str, torch.Tensor]:
        assert self._role is not None
        return self._role.state(policy)

    def _exit(self) -> None:
        for thread in (self._committer, self._sender):
            thread.shutdown(wait=True)
        sys.stdout.flush()
        os._exit(0)

    # -- the other threads ---------------------------------------------------------------------------------------------

    def _submit(self, thread: ThreadPoolExecutor, job: Callable[..., None], *arguments: object) -> None:
        """Run a job in one of the threads, in order. A failed job ends the process: a lost result looks like a hang."""

        def guarded() -> None:
            try:
                job(*arguments)
            except Disconnected:
                os._exit(0)
            except Stopped as error:
                with contextlib.suppress(Disconnected):
                    self.send(m.StoreFailed(problem=str(error)))
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        thread.submit(guarded)

    def _decode(self, finished: Sequence[Finished]) -> None:
        """Decode and send finished samples; only rollouts, which are trained on, carry their tensors."""
        for sample, image in zip(finished, decode_images(self._adapter, finished), strict=True):
            tensors = {IMAGE: image}
            message = m.Result(
                request=sample.request.id, attempt=sample.attempt, digest=sample.weights_digest, steps=sample.steps
            )
            if sample.request.work is Work.ROLLOUT:
                payload = sample.payload.to_bytes()
                if self._store is None:
                    tensors[PAYLOAD] = np.frombuffer(payload, dtype=np.uint8)
                else:
                    ref = self._store.append_sample(sample.request.iteration, payload)
                    message = msgspec.structs.replace(message, payload=ref)
            self.send(message, save(tensors))

    def _listen(self) -> None:
        try:
            self._receive()
        except BaseException:
            # Without this thread the worker would receive no order and outlive its agent.
            traceback.print_exc()
            os._exit(1)

    def _receive(self) -> None:
        while (received := self._connection.recv()) is not None:
            envelope, blob = received
            if isinstance(envelope.message, m.FormGang) and self._role is not None:
                # The main thread may wait in an exchange of a gang that has lost a rank.
                self._role.abort(envelope.message.epoch)
            self._inbox.put((envelope.message, blob))
        os._exit(0)  # no orphan survives its agent

    def _send_heartbeats(self) -> None:
        self._hello_sent.wait()
        while True:
            time.sleep(self._launch.heartbeat_s)
            # Waiting for work, starting and training have no time limit.
            if time.monotonic() - self._last_effect < STALLED_S or self._spans.current is not None:
                try:
                    alive = self._core.alive(self._spans.take())
                    self.send(msgspec.structs.replace(alive, warms_up=self._engine.warms_up))
                except Disconnected:
                    os._exit(0)


class _EngineRows:
    """The engine's samples, as the core sees them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.withdraw: Callable[[RequestId], CommittedRow | None] = engine.withdraw
        self.fence = engine.fence
        self.discard = engine.discard
        self.progress = engine.progress

    @property
    def rows(self) -> int:
        return self._engine.rows

    @property
    def free_rows(self) -> int:
        return self._engine.free_rows

    def admit(self, lease: m.Granted, flight: bytes | None) -> None:
        self._engine.admit(lease.request, lease.prompt, lease.attempt, lease.commit_every, flight)
