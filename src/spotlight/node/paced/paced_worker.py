"""A worker of a paced run: the very process of a real one, over a device on which computing is waiting.

What takes time, and how much, is what the simulator charges (`sim/profiled.py`); everything else is the
product: messages, leases, commits, weights on disk, checkpoints, deaths (tests/processes/test_paced.py). All ranks of a
gang wait for an update's time; rank 0 alone takes the step.
"""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.sources import PACED
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.profiling.pace import ProfiledPace, TrainingCost
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
from spotlight.core.work import Policy, SlotClass, WeightsId
from spotlight.node.equipment import SETS_HELD, Equipment, Say, TrainingOrder
from spotlight.node.launch import WorkerLaunch
from spotlight.node.paced.device import PacedDevice
from spotlight.node.paced.model import PacedAdapter, spec_named
from spotlight.node.paced.quicker import quicker
from spotlight.node.worker import Worker
from spotlight.node.worker_settings import PaceSettings, WorkerSettings


def entry(worker: WorkerId, sock: socket.socket, config: bytes) -> None:
    """Where the nursery's child begins."""
    launch = WorkerLaunch.from_bytes(config)
    torch.set_num_threads(1)
    settings = WorkerSettings.model_validate_json(launch.settings)
    Worker(worker, Connection(sock), launch, settings, equip).run()


@dataclass(frozen=True)
class PacedClock:
    """A device and the durations of operations on it."""

    device: PacedDevice
    pace: ProfiledPace


class PacedEngine(Engine):
    """Every step takes its time."""

    def __init__(
        self, adapter: Adapter, model: PacedAdapter, resident: Resident, run_seed: int, rows: int, padded: bool,
        held: PacedClock,
    ) -> None:  # fmt: skip
        super().__init__(adapter, resident, run_seed, rows, padded)
        self._model = model
        self._held = held

    def step(self) -> Boundary:
        seen = self._model.rows_seen
        return self._held.device.take(super().step, lambda done: self._step_s(self._model.rows_seen - seen, done))

    def _step_s(self, rows: int, done: Boundary) -> float:
        is_exact = done.work is None or done.work.is_exact
        return self._held.pace.roll() + self._held.pace.step(rows, self.rows, 1, is_exact) if rows else 0.0


class PacedResident(Resident):
    """A published set takes its time to arrive."""

    def __init__(self, model: PacedAdapter, base_digest: str, capacity: int, held: PacedClock) -> None:
        super().__init__(model.transformer, base_digest, capacity)
        self._held = held
        # As the model that it stands in for.
        self.rounds = held.pace.rounds

    def load(self, stored: MappedWeights) -> str:
        return self._held.device.take(lambda: Resident.load(self, stored), lambda _: self._seconds(stored.weights))

    def _seconds(self, weights: WeightsId) -> float:
        return self._held.pace.load(weights, is_held=False)


class PacedRole:
    """A training role whose every order takes its time."""

    def __init__(self, role: TrainingRole, held: PacedClock) -> None:
        self._role = role
        self._held = held

    def obey(self, order: TrainingOrder) -> m.AnyMessage | None:
        seconds = self._seconds(order)
        return self._held.device.take(lambda: self._obey(order), lambda _: seconds)

    def state(self, policy: Policy) -> Mapping[str, torch.Tensor]:
        return self._role.state(policy)

    def _obey(self, order: TrainingOrder) -> m.AnyMessage | None:
        is_followed = isinstance(order, m.Train) and order.rank > 0
        return None if is_followed else self._role.obey(order)

    def _seconds(self, order: TrainingOrder) -> float:
        pace = self._held.pace
        match order:
            case m.Train():
                return pace.train(order)
            case m.Publish():
                return pace.publish(order)
            case m.Save():
                return pace.snapshot()
            case m.Restore():
                return pace.load_s


def slow_write(pace: ProfiledPace) -> Write:
    """Beside what the device does, and as long as the disk of the profile takes."""

    def write(taken: checkpoint.TrainerSnapshot, folder: Path) -> None:
        began = time.monotonic()
        checkpoint.write(taken, folder)
        time.sleep(max(0.0, began + pace.write() - time.monotonic()))

    return write


def equip(launch: WorkerLaunch, settings: WorkerSettings, say: Say) -> Equipment:
    """The stand-ins, after as long as a worker takes to start."""
    born = time.monotonic()
    assert settings.pace is not None
    assert launch.rows is not None, "a paced worker measures nothing"
    profile = quicker(Profile.load(settings.pace.profile), settings.pace.speed)
    held = PacedClock(PacedDevice(), pace_of(profile, settings.pace, launch))
    model = PacedAdapter(spec_named(settings.model.name), held.pace, held.device)
    base_digest = f"{PACED}{profile.digest}"
    # There is nothing to adapt and nothing to recompute in one layer.
    train = settings.train.model_copy(update={"lora": None, "gradient_checkpointing": False})
    role = None
    if launch.trains:
        trainer = Trainer(model, train, settings.algorithm, settings.run_seed, settings.takes_stale)
        folder, write = Path(settings.run_folder), slow_write(held.pace)
        role = PacedRole(TrainingRole(trainer, model, base_digest, folder, say, write), held)
    resident = PacedResident(model, base_digest, SETS_HELD, held)
    shared = SharedAdapter(model, say, resident)
    engine = PacedEngine(shared, model, resident, settings.run_seed, launch.rows, settings.deterministic, held)
    time.sleep(max(0.0, born + held.pace.start_s - time.monotonic()))
    return Equipment(model, shared, resident, engine, role, kind=profile.hardware)


def pace_of(profile: Profile, settings: PaceSettings, launch: WorkerLaunch) -> ProfiledPace:
    return ProfiledPace(
        step_s=profile.seconds(Operation.DENOISE_STEP),
        start_s=profile.seconds(Operation.WORKER_START),
        load_s=profile.seconds(Operation.NODE_FETCH),
        adopt_s=profile.seconds(Operation.ADOPT),
        train_s=profile.seconds(Operation.TRAIN_TIMESTEP),
        heartbeat_s=launch.heartbeat_s,
        slowness=1 / settings.spot_speed if launch.slot_class is SlotClass.SPOT else 1.0,
        rounds=Operation.PREVIEW_STEP in profile.operations,
        profile=profile,
        cost=TrainingCost(settings.timesteps, settings.forwards, settings.passes, settings.over),
        train_batch=efficient_batch(profile, Operation.TRAIN_TIMESTEP),
    )
