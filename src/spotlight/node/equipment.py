"""What a worker computes with: its device, the model on it, and how many rows it takes at a time.

With `cluster.rows: auto` the rows are measured (`compute/rollout/row_search.py`), once for all slots of a device that
have the same role. They may use what is free on the device, divided by the processes that share it, less what the slot
will need later: the published sets that it is to hold and, where it trains, gradients, moments and the batches of the
trainer.
"""

import fcntl
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
import torch

from spotlight.compute.meter import DeviceMeter
from spotlight.compute.models import families
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.families import usable_device
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.rollout.row_search import RolloutShape, search_rows
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident
from spotlight.core import messages as m
from spotlight.core.types import Prompt, Size
from spotlight.core.work import Policy
from spotlight.node.launch import WorkerLaunch
from spotlight.node.worker_settings import RowsSettings, WorkerSettings


class MeasuredRows:
    """The file of one device."""

    def __init__(self, folder: Path, device: str) -> None:
        name = f"rows-{device.replace(':', '-')}"
        self._path = folder / f"{name}.json"
        self._lock = folder / f"{name}.lock"

    def of(self, kind: str, measure: Callable[[], int]) -> int:
        """What was measured for this kind of slot; measured now if nothing was."""
        with self._lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known: dict[str, int] = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
            if kind not in known:
                known[kind] = measure()
                scratch = self._path.with_suffix(".part")
                scratch.write_bytes(msgspec.json.encode(known))
                os.replace(scratch, self._path)
            return known[kind]


SETS_HELD = 3
"""Current behaviour, the average that is evaluated, and the next behaviour while it is loaded, or the one before while
samples of it are in flight."""
MEMORY_SHARE = 0.9
"""Of what is free: prompts differ in length, and the allocator needs room between its blocks."""
TRAINER_STATE = 3
"""Copies of the trained weights that the first optimizer step adds: gradients and two moments."""
TRAINER_SHARE = 0.5
"""Of what is left, for the rollouts of a slot that also trains; the rest is for its training batches."""

TrainingOrder: TypeAlias = m.Train | m.Publish | m.Save | m.Restore
Say: TypeAlias = Callable[[m.AnyMessage], None]


class Trains(Protocol):
    """The training role."""

    def obey(self, order: TrainingOrder) -> m.AnyMessage | None:
        """The answer; none of a rank that only takes part, or of a checkpoint, which is told of when it is durable."""

    def state(self, policy: Policy) -> Mapping[str, torch.Tensor]:
        """What it would publish now."""


@dataclass(frozen=True)
class Equipment:
    """What a worker computes with; that of a paced run is `paced/worker.py`."""

    adapter: Adapter
    shared: SharedAdapter
    resident: Resident
    engine: Engine
    role: Trains | None
    kind: str
    """Of its device: workers of one kind are equally fast."""


Equip: TypeAlias = Callable[[WorkerLaunch, WorkerSettings, Say], Equipment]


def equip(launch: WorkerLaunch, settings: WorkerSettings, say: Say) -> Equipment:
    """The base model, what is trainable in it, and the parts that share it."""
    content = families.read_weights(settings.model.name)
    adapter = families.build(content, own_device(launch.device.name))
    torch.set_float32_matmul_precision("high" if settings.model.tf32 else "highest")
    role: TrainingRole | None = None
    if launch.trains:
        trainer = Trainer(adapter, settings.train, settings.algorithm, settings.run_seed, settings.takes_stale)
        role = TrainingRole(trainer, adapter, content.digest, Path(settings.run_folder), say)
    else:
        select_trainable(adapter.transformer, settings.train.lora, adapter.lora_targets, settings.run_seed)
    kind, rows = device_kind(adapter.device), rows_of(launch, settings.rows, adapter)
    sys.stdout.write(f"{launch.device.name} ({kind}), {rows} rows\n")
    sys.stdout.flush()
    resident = Resident(adapter.transformer, content.digest, capacity=SETS_HELD)
    shared = SharedAdapter(adapter, say, resident)
    engine = Engine(shared, resident, settings.run_seed, rows, padded=settings.deterministic)
    return Equipment(adapter, shared, resident, engine, role, kind)


def own_device(name: str) -> torch.device:
    """The device that the slot was given, as the current one of this process."""
    device = usable_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def rows_of(launch: WorkerLaunch, settings: RowsSettings | None, adapter: Adapter) -> int:
    """As launched, or as measured, here or by a slot of the same kind before."""
    if launch.rows is not None:
        return launch.rows
    assert settings is not None, f"{launch.node} is to measure its rows, but the run says nothing of its rollouts"
    rolled = RolloutShape(
        size=Size(settings.height, settings.width),
        guidance=settings.guidance,
        window=settings.window,
        prompt=Prompt(text=settings.prompt),
        most=settings.most,
    )
    role = "trains" if launch.trains else "rolls out"
    kind = f"{device_kind(adapter.device)}, shared by {launch.device.processes}, {role}"

    def measure() -> int:
        spare = spare_bytes(adapter, launch.trains, launch.device.processes)
        return search_rows(adapter, rolled, spare, DeviceMeter(adapter.device, own=True))

    return MeasuredRows(Path(launch.shared), launch.device.name).of(kind, measure)


def spare_bytes(adapter: Adapter, trains: bool, processes: int) -> int | None:
    """That rollouts may take beyond what this process has now; None where they are not counted."""
    device = adapter.device
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    trained = sum(p.numel() * p.element_size() for p in adapter.transformer.parameters() if p.requires_grad)
    copies = SETS_HELD + (TRAINER_STATE if trains else 0)
    left = MEMORY_SHARE * (free + cached) / processes - copies * trained
    return int(left * (TRAINER_SHARE if trains else 1.0))
