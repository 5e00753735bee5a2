"""Worker of a paced run: a real worker process over a simulated device.

Durations are those that the simulator charges (`compute/profiling/pace.py`). Everything else is the product: messages,
leases, commits, weights on disk, gangs, checkpoints, deaths (tests/processes/test_paced.py).
"""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from spotlight.compute.memory.memory_plan import SETS_HELD
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.sources import PACED
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.profiling.pace import ProfiledPace, TrainingCost, preview_operation
from spotlight.compute.rollout.engine import Boundary, Engine
from spotlight.compute.train import checkpoint
from spotlight.compute.train.role import TrainingRole, Write
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import MappedWeights
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.wire import Connection
from spotlight.core.work import Policy, WeightsId
from spotlight.node.equipment import Equipment, Send, gang_links
from spotlight.node.launch import WorkerLaunch
from spotlight.node.paced.device import PacedDevice
from spotlight.node.paced.model import PacedAdapter, spec_named
from spotlight.node.paced.quicker import quicker
from spotlight.node.worker import Worker
from spotlight.node.worker_settings import PaceSettings, WorkerSettings


def entry(worker: WorkerId, sock: socket.socket, config: bytes) -> None:
    """Entry point of a forked worker."""
    launch = WorkerLaunch.from_bytes(config)
    torch.set_num_threads(1)
    settings = WorkerSettings.model_validate_json(launch.settings)
    Worker(worker, Connection(sock), launch, settings, equip).run()


@dataclass(frozen=True)
class PacedClock:
    """A simulated device and the durations of its operations."""

    device: PacedDevice
    pace: ProfiledPace


class PacedEngine(Engine):
    """Engine whose steps take the profile's duration."""

    def __init__(
        self, adapter: Adapter, model: PacedAdapter, resident: Resident, run_seed: int, rows: int, padded: bool,
        clock: PacedClock,
    ) -> None:  # fmt: skip
        super().__init__(adapter, resident, run_seed, rows, padded)
        self._model = model
        self._clock = clock

    def step(self) -> Boundary:
        seen = self._model.rows_seen
        return self._clock.device.take(super().step, lambda done: self._step_s(self._model.rows_seen - seen, done))

    def _step_s(self, rows: int, done: Boundary) -> float:
        is_exact = done.work is None or done.work.is_exact
        return self._clock.pace.roll() + self._clock.pace.step(rows, self.rows, 1, is_exact) if rows else 0.0


class PacedResident(Resident):
    """Resident weights whose loads take the profile's duration."""

    def __init__(self, model: PacedAdapter, base_digest: str, capacity: int, clock: PacedClock) -> None:
        super().__init__(model.transformer, base_digest, capacity)
        self._clock = clock
        # As in the model that this one replaces.
        self.rounds = clock.pace.rounds

    @property
    def copies_sets(self) -> bool:
        profile = self._clock.pace.profile
        assert profile is not None
        return profile.copies_sets

    def load(self, stored: MappedWeights) -> str:
        return self._clock.device.take(lambda: Resident.load(self, stored), lambda _: self._clock.pace.load_s)

    def adopt(self, weights: WeightsId, tensors: Mapping[str, torch.Tensor]) -> str:
        """Apply this worker's own copy: no neighbour offers memory of a CPU."""
        adopted = partial(Resident.adopt, self, weights, tensors)
        return self._clock.device.take(adopted, lambda _: self._clock.pace.adopt())


class PacedRole:
    """Training role whose orders take the profile's duration."""

    def __init__(self, role: TrainingRole, clock: PacedClock) -> None:
        self._role = role
        self._clock = clock

    @property
    def rolls_out(self) -> bool:
        return self._role.rolls_out

    def form(self, order: m.FormGang) -> m.AnyMessage:
        return self._role.form(order)

    def abort(self, epoch: int) -> None:
        self._role.abort(epoch)

    def obey(self, order: m.Train | m.Publish | m.Save | m.Restore) -> m.AnyMessage | None:
        seconds = self._seconds(order)
        # Only the rank that replies to Publish writes.
        return self._clock.device.take(
            lambda: self._role.obey(order),
            lambda reply: 0.0 if reply is None and isinstance(order, m.Publish) else seconds,
        )

    def state(self, policy: Policy) -> Mapping[str, torch.Tensor]:
        return self._role.state(policy)

    def _seconds(self, order: m.Train | m.Publish | m.Save | m.Restore) -> float:
        pace = self._clock.pace
        match order:
            case m.Train():
                return pace.train(order)
            case m.Publish():
                return pace.publish()
            case m.Save():
                return pace.snapshot()
            case m.Restore():
                return pace.restore()


def paced_write(pace: ProfiledPace) -> Write:
    """Checkpoint writer that takes the profile's disk time, beside the device's work."""

    def write(taken: checkpoint.TrainerSnapshot, folder: Path) -> None:
        began = time.monotonic()
        checkpoint.write(taken, folder)
        time.sleep(max(0.0, began + pace.write() - time.monotonic()))

    return write


def equip(launch: WorkerLaunch, settings: WorkerSettings, send: Send) -> Equipment:
    """Build the stand-ins, and wait until the profile's start time is over."""
    started = time.monotonic()
    assert settings.pace is not None
    assert launch.rows is not None, "a paced worker measures nothing"
    profile = quicker(Profile.load(settings.pace.profile), settings.pace.speed)
    clock = PacedClock(PacedDevice(), pace_of(profile, settings.pace, launch))
    model = PacedAdapter(spec_named(settings.model.name), clock.pace, clock.device)
    base_digest = f"{PACED}{profile.digest}"
    # One layer has nothing to adapt and nothing to recompute.
    train = settings.train.model_copy(update={"lora": None, "gradient_checkpointing": False})
    role = None
    if launch.trains:
        trainer = Trainer(model, train, settings.algorithm, settings.run_seed, settings.takes_stale)
        folder, write = Path(settings.run_folder), paced_write(clock.pace)
        links = gang_links(launch, settings)
        role = PacedRole(TrainingRole(trainer, model, base_digest, folder, send, write, links), clock)
    resident = PacedResident(model, base_digest, SETS_HELD, clock)
    shared = SharedAdapter(model, send, resident)
    engine = PacedEngine(shared, model, resident, settings.run_seed, launch.rows, settings.deterministic, clock)
    time.sleep(max(0.0, started + clock.pace.start_s - time.monotonic()))
    return Equipment(model, shared, resident, engine, role, kind=profile.hardware)


def pace_of(profile: Profile, settings: PaceSettings, launch: WorkerLaunch) -> ProfiledPace:
    previews = preview_operation(profile, settings.precision)
    return ProfiledPace(
        step_s=profile.seconds(Operation.DENOISE_STEP),
        start_s=profile.seconds(Operation.WORKER_START),
        load_s=profile.seconds(Operation.STORE_LOAD),
        adopt_s=profile.seconds(Operation.ADOPT),
        train_s=profile.seconds(Operation.TRAIN_TIMESTEP),
        heartbeat_s=launch.heartbeat_s,
        slowness=1 / launch.speed,
        rounds=previews is not Operation.DENOISE_STEP,
        previews=previews,
        profile=profile,
        cost=TrainingCost(settings.timesteps, settings.forwards, settings.passes, settings.over),
        train_batch=efficient_batch(profile, Operation.TRAIN_TIMESTEP),
    )
