"""One slot's persistent process: pulls work, denoises step by step, commits, and trains if its slot has that role.

Four threads. The main thread owns the model and applies received messages between two denoising steps. The control
thread reads messages and ends the process when the agent is gone; the heartbeat thread sends Alive; neither touches the
model. The sender thread decodes and sends finished samples while the next steps run.

The main loop consumes the inbox; it waits there only when no sample is in flight. A Grant, Load or order unblocks it.
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
from spotlight.compute.parallel.gang_group import RankLost
from spotlight.compute.parallel.group import CrewBroken, DeviceKind, form
from spotlight.compute.rollout.engine import Finished, decode_images
from spotlight.compute.train.sharded import RestartNeeded
from spotlight.compute.weights.store import NodeStore
from spotlight.core import crew_messages as crews
from spotlight.core import messages as m
from spotlight.core.errors import SpotlightError, describe, exit_code_of
from spotlight.core.events import SCHEMA
from spotlight.core.types import WorkerId
from spotlight.core.wire import Connection, Disconnected
from spotlight.core.work import Activity, RequestId, Work
from spotlight.node.equipment import Equip, TrainingOrder, equip
from spotlight.node.judge import IMAGE, PAYLOAD
from spotlight.node.launch import WorkerLaunch
from spotlight.node.membership import Membership
from spotlight.node.neighbours import Loading
from spotlight.node.spans import SpanLog
from spotlight.node.step_speed import StepSpeed
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
        self._pulls = True
        """Whether it pulls rollouts: False from a Train order until the iteration's last update, unless updates come in
        parts."""
        self._last_iteration = time.monotonic()
        self._sender = ThreadPoolExecutor(1, "sender")
        self._offered_rows = 0
        self._grants = 0
        self._epoch = 0
        """Gang that this worker joined last."""
        self._step_speed = StepSpeed()

    def run(self) -> None:
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()
        try:
            with self._spans.doing(Activity.START):
                self._build()
            self._send_hello()
            self._hello_sent.set()
            while True:
                self._iterate()
        except Disconnected:
            os._exit(0)
        except Exception as error:
            # The slot's next worker would fail in the same way: the controller counts failures and stops the run.
            with contextlib.suppress(Disconnected):
                self._send(m.Failed(problem=describe(error), fatal=True, exit_code=exit_code_of(error)))
            raise

    # -- the model's thread --------------------------------------------------------------------------------------------

    def _build(self) -> None:
        equipment = self._equip(self._launch, self._settings, self._send)
        self._adapter, self._role, self._engine = equipment.adapter, equipment.role, equipment.engine
        self._kind, self._kernels = equipment.kind, equipment.kernels
        resident = self._resident = equipment.resident
        self._loading = Loading(self._id, resident, NodeStore(Path(self._launch.store)), self._send)
        connect = partial(
            form,
            device_kind=DeviceKind(self._launch.transport),
            limit_s=self._launch.exchange_s,
            first_limit_s=self._launch.first_exchange_s,
        )
        self._membership = Membership(
            self._id, equipment.shared, self._engine, resident, self._send, self._launch.patience_s, connect
        )

    def _send_hello(self) -> None:
        launch = self._launch
        self._send(
            m.Hello(
                schema=SCHEMA,
                code=__version__,
                node=launch.node,
                slot_class=launch.slot_class,
                rows=self._engine.rows,
                pid=os.getpid(),
                trains=launch.trains,
                kind=self._kind,
                kernels=self._kernels,
            )
        )

    def _iterate(self) -> None:
        """Apply received messages, take one step, pull more work."""
        self._last_iteration = time.monotonic()
        while not self._inbox.empty():
            self._apply(*self._inbox.get())
        paused_s = self._membership.seconds_paused()
        loading_s = self._loading.seconds_left()
        self._pull()
        if paused_s or self._engine.free_rows == self._engine.rows:
            self._wait(min((s for s in (paused_s or None, loading_s) if s is not None), default=None))
        else:
            self._step()

    def _wait(self, seconds: float | None) -> None:
        with self._spans.doing(Activity.IDLE):
            try:
                arrived = self._inbox.get(timeout=seconds)
            except queue.Empty:
                return
        self._apply(*arrived)

    def _step(self) -> None:
        began = time.monotonic()
        try:
            boundary = self._engine.step()
        except CrewBroken as error:
            # No sample has advanced: the same step is repeated, alone or in the crew that the agent orders.
            self._membership.broke(error)
            return
        ended = time.monotonic()
        if boundary.work is not None:
            self._spans.record(_ACTIVITY[boundary.work], began, ended)
        self._step_speed.record(boundary.rows, self._engine.rows, self._membership.degree, ended - began)
        for commit in boundary.commits:
            message = m.Commit(request=commit.request, attempt=commit.attempt, step=commit.step, since=commit.since)
            self._post(self._send, message, commit.flight or b"")
        if boundary.finished:
            self._post(self._deliver, boundary.finished)

    @property
    def _rolls_out(self) -> bool:
        """Whether its model can roll out: that of a rank with a share of the weights cannot."""
        return self._role is None or self._role.rolls_out

    def _pull(self) -> None:
        """Offer the free rows; a follower offers none, because its leader uses its time."""
        rolls_out = self._pulls and not self._membership.follows and self._rolls_out
        free = self._engine.free_rows if rolls_out else 0
        if free != self._offered_rows and (free or self._membership.follows):
            speed = self._step_speed.row_steps_per_s(self._membership.degree)
            self._send(m.Pull(free_rows=free, row_steps_per_s=speed, answered=self._grants))
            self._offered_rows = free

    def _apply(self, message: m.AnyMessage, blob: bytes) -> None:
        match message:
            case m.Grant():
                self._admit(message, blob)
            case m.Load() if not self._rolls_out:
                # It applies no published set; the agent may delete the files that were retired before this one.
                self._send(m.Held(weights=message.weights, digest=message.digest))
            case crews.Adopt() if not self._rolls_out:
                pass
            case m.Load():
                with self._spans.doing(Activity.LOAD):
                    self._loading.load(message)
            case crews.Adopt():
                with self._spans.doing(Activity.LOAD):
                    self._loading.adopt(message)
            case crews.AskNeighbour():
                self._loading.requested(message)
            case crews.Offered():
                with self._spans.doing(Activity.LOAD):
                    self._loading.offered(message, blob)
            case m.Recall():
                for request in message.requests:
                    self._hand_back(request)
            case m.Discard():
                self._engine.discard(message.work)
                self._offered_rows = 0
            case m.Fenced():
                self._engine.fence(message.request, message.attempt)
                self._offered_rows = 0
            case crews.Forward():
                with self._spans.doing(Activity.ROLLOUT if message.is_exact else Activity.PREVIEW):
                    self._membership.apply(message)
            case crews.Prepare() | crews.Form() | crews.Disband():
                self._membership.apply(message)
            case m.FormGang() | m.Train() | m.Publish() | m.Save() | m.Restore():
                self._train(message)
            case m.Drain():
                self._drain()
            case _:
                raise TypeError(f"a worker does not handle {type(message).__name__}")

    def _admit(self, grant: m.Grant, blob: bytes) -> None:
        self._grants += 1
        flights = msgspec.msgpack.decode(blob, type=dict[str, bytes]) if blob else {}
        for lease in grant.leases:
            flight = flights.get(lease.request.id)
            try:
                self._engine.admit(lease.request, lease.prompt, lease.attempt, lease.commit_every, flight)
            except SpotlightError as error:
                code, request = error.exit_code, lease.request.id
                self._send(m.Failed(problem=str(error), request=request, attempt=lease.attempt, exit_code=code))
            else:
                if self._membership.follows:
                    # The grant crossed the order to follow; a follower has no samples of its own.
                    self._hand_back(lease.request.id)
        self._offered_rows = 0

    def _train(self, order: TrainingOrder) -> None:
        if self._role is None:
            raise TypeError(f"{self._id} was ordered to {type(order).__name__} but has no training role")
        if isinstance(order, m.FormGang):
            self._epoch = order.epoch
        if isinstance(order, m.FormGang | m.Train | m.Save):
            with self._spans.doing(Activity.SWITCH):
                # Other workers continue them: a snapshot may take long, and a worker that keeps recalled samples
                # counts as dead.
                for progress in self._engine.progress():
                    self._hand_back(progress.request)
            self._offered_rows = 0
        if isinstance(order, m.Train):
            # Between the parts of an update the trainer may assist with rollouts.
            self._pulls = order.last or order.samples is not None
        try:
            with self._spans.doing(_ORDERED[type(order)]):
                reply = self._role.form(order) if isinstance(order, m.FormGang) else self._role.obey(order)
        except RestartNeeded as error:
            # A share of the weights cannot join another gang; the next process of this slot can.
            sys.stderr.write(f"{error}\n")
            os._exit(0)
        except RankLost as error:
            # This process is well and keeps its state; the controller forms the next gang.
            sys.stderr.write(f"{error}\n")
            if not self._role.rolls_out:
                os._exit(0)
            reply = m.GangBroken(epoch=self._epoch, problem=str(error))
        except Exception as error:
            # Reported instead of raised: out of memory or a full disk would kill the next gang in the same way.
            traceback.print_exc()
            reply = m.Failed(problem=describe(error), exit_code=exit_code_of(error))
        if isinstance(order, m.FormGang) and not self._role.rolls_out:
            self._resident.release()
        if isinstance(reply, m.PublishedWeights) and self._role.rolls_out:
            self._loading.wrote(reply.weights, self._role.state(reply.weights.policy))
        if reply is not None:
            self._send(reply)

    def _hand_back(self, request: RequestId) -> None:
        committed = self._engine.withdraw(request)
        self._offered_rows = 0
        if committed is not None:
            message = m.HandBack(request=request, attempt=committed.attempt, step=committed.step)
            self._post(self._send, message, committed.flight or b"")

    def _drain(self) -> None:
        for progress in self._engine.progress():
            self._hand_back(progress.request)
        self._sender.shutdown(wait=True)
        sys.stdout.flush()
        os._exit(0)

    # -- the other threads ---------------------------------------------------------------------------------------------

    def _post(self, job: Callable[..., None], *arguments: object) -> None:
        """Run a job in the sender thread, in order. A failed job ends the process: a lost result looks like a hang."""

        def guarded() -> None:
            try:
                job(*arguments)
            except Disconnected:
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

        self._sender.submit(guarded)

    def _deliver(self, finished: Sequence[Finished]) -> None:
        """Decode and send finished samples; only rollouts, which are trained on, carry their tensors."""
        for sample, image in zip(finished, decode_images(self._adapter, finished), strict=True):
            tensors = {IMAGE: image}
            if sample.request.work is Work.ROLLOUT:
                tensors[PAYLOAD] = np.frombuffer(sample.payload.to_bytes(), dtype=np.uint8)
            message = m.Result(
                request=sample.request.id, attempt=sample.attempt, digest=sample.weights_digest, steps=sample.steps
            )
            self._send(message, save(tensors))

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
            if time.monotonic() - self._last_iteration < STALLED_S or self._spans.current is not None:
                try:
                    gain = self._step_speed.gain(self._membership.degree) if self._membership.degree > 1 else None
                    self._send(m.Alive(progress=self._engine.progress(), spans=self._spans.take(), gain=gain))
                except Disconnected:
                    os._exit(0)

    def _send(self, message: m.AnyMessage, blob: bytes = b"") -> None:
        self._connection.send(m.Envelope(self._id, message), blob)


_ACTIVITY = {
    Work.ROLLOUT: Activity.ROLLOUT,
    Work.AUDIT: Activity.ROLLOUT,
    Work.EVALUATION: Activity.EVALUATION,
    Work.PREVIEW: Activity.PREVIEW,
}
_ORDERED: Mapping[type[TrainingOrder], Activity] = {
    m.FormGang: Activity.LOAD,
    m.Train: Activity.TRAIN,
    m.Publish: Activity.PUBLISH,
    m.Save: Activity.PUBLISH,
    m.Restore: Activity.LOAD,
}
