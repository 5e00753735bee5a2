"""A worker's equipment: its device, the model on it, and its row count.

With `cluster.rows: auto` the rows are measured (`compute/rollout/row_search.py`), once for all slots of a device with
the same role. Rollouts may use the device's free memory, divided by the processes that share it, less what the slot
needs later: the published sets and, if it trains, gradients, moments and training batches.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import torch

from spotlight.compute.memory.choices import TrainingLimits, choose_training, offloads_vae
from spotlight.compute.memory.memory_load import Workload
from spotlight.compute.memory.memory_plan import SETS_HELD
from spotlight.compute.meter import DeviceMeter
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.loaded import load_source
from spotlight.compute.models.sources import resolve
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.parallel.gang_group import GangLinks
from spotlight.compute.parallel.group import DeviceKind
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.rollout.row_search import RolloutShape, search_rows
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident
from spotlight.core import messages as m
from spotlight.core.run_files import EMBEDDINGS
from spotlight.core.types import Prompt, Size
from spotlight.core.work import Policy
from spotlight.node.acceleration import EAGER, accelerated, kernels_of
from spotlight.node.launch import WorkerLaunch
from spotlight.node.measured import MeasuredFigures
from spotlight.node.worker_settings import RowsSettings, WorkerSettings

MEMORY_SHARE = 0.9
"""Usable share of the free memory: prompts differ in length, and the allocator leaves gaps between its blocks."""
TRAINER_STATE = 3
"""Copies of the trained weights that the first update adds: gradients and two moments."""
TRAINER_SHARE = 0.5
"""Share of the remaining memory for the rollouts of a slot that also trains; the rest is for training batches."""

Send: TypeAlias = Callable[[m.AnyMessage], None]


class Trains(Protocol):
    """The training role."""

    @property
    def rolls_out(self) -> bool:
        """Whether this rank's model can also roll out."""

    def form(self, order: m.FormGang) -> m.AnyMessage:
        """Leave any earlier gang and connect to the other ranks of this one; raises RankLost."""

    def abort(self, epoch: int) -> None:
        """End an exchange or the forming of a gang before this one; called by another thread."""

    def obey(self, order: m.Train | m.Publish | m.Save | m.Restore) -> m.AnyMessage | None:
        """Execute an order and return the reply; None for a Save, whose reply follows later, and a Publish of a rank
        above 0. Raises RankLost."""

    def state(self, policy: Policy) -> Mapping[str, torch.Tensor]:
        """Current weights of the policy, as Publish writes them."""


@dataclass(frozen=True)
class Equipment:
    """The parts that a worker computes with; `paced/paced_worker.py` makes those of a paced run."""

    adapter: Adapter
    shared: SharedAdapter
    resident: Resident
    engine: Engine
    role: Trains | None
    kind: str
    """Kind of its device: workers of one kind are equally fast."""
    kernels: str = EAGER
    """Kernels that it computes with; those of all workers of a run are the same."""


Equip: TypeAlias = Callable[[WorkerLaunch, WorkerSettings, Send], Equipment]


def equip(launch: WorkerLaunch, settings: WorkerSettings, send: Send) -> Equipment:
    """Build the base model with its trainable weights, and the parts that share it."""
    loaded = load_source(resolve(settings.model.name), settings.model, own_device(launch.device.name))
    adapter, digest = loaded.adapter, loaded.digest
    if loaded.world is None:
        _read_embeddings(adapter, settings)
    torch.set_float32_matmul_precision("high" if settings.model.tf32 else "highest")
    limits = fit_to_memory(launch, settings, adapter)
    role: TrainingRole | None = None
    if launch.trains:
        trainer = Trainer(adapter, settings.train, settings.algorithm, settings.run_seed, settings.takes_stale, limits)
        links = gang_links(launch, settings)
        role = TrainingRole(trainer, adapter, digest, Path(settings.run_folder), send, links=links)
    else:
        select_trainable(adapter.transformer, settings.train.lora, adapter.lora_targets, settings.run_seed)
    fast = accelerated(adapter, launch, settings) if settings.model.compile is True else None
    kind, rows = device_kind(adapter.device), rows_of(launch, settings.rows, adapter)
    sys.stdout.write(f"{launch.device.name} ({kind}), {rows} rows\n")
    sys.stdout.flush()
    resident = Resident(adapter.transformer, digest, capacity=SETS_HELD, fast=fast)
    shared = SharedAdapter(adapter, send, resident)
    engine = Engine(shared, resident, settings.run_seed, rows, settings.deterministic, in_buckets=fast is not None)
    return Equipment(adapter, shared, resident, engine, role, kind, kernels_of(fast))


def gang_links(launch: WorkerLaunch, settings: WorkerSettings) -> GangLinks:
    """NCCL where each rank has a GPU of its own: it refuses two ranks on one device."""
    has_own_gpu = launch.device.name != "cpu" and launch.device.processes == 1
    return GangLinks(
        port=launch.gang_port,
        limit_s=settings.train.timeout_s,
        transport=DeviceKind.NCCL if has_own_gpu else DeviceKind.GLOO,
        even_shares=settings.deterministic,
    )


def fit_to_memory(launch: WorkerLaunch, settings: WorkerSettings, adapter: Adapter) -> TrainingLimits | None:
    """Offload the VAE if the plan says so, and return the limits of training; None if the slot does not train."""
    work = workload_of(settings)
    if work is None:
        return None
    model, memory = settings.model, launch.device.memory or _own_memory(adapter.device, launch.device.processes)
    limits = None
    if launch.trains:
        assert settings.memory is not None
        limits = choose_training(work, settings.train, model, memory, launch.rows or 1, settings.memory.shards)
    offloads = limits.offloads_vae if limits is not None else offloads_vae(work, model, launch.rows or 1, memory)
    if offloads and work.facts.vae_parameters:
        from spotlight.compute.models.pipeline_adapter import PipelineAdapter

        assert isinstance(adapter, PipelineAdapter)
        adapter.offload_vae()
    if limits is not None:
        most = "" if limits.most is None else f"at most {limits.most} rows per forward, "
        sys.stdout.write(f"training: {most}{limits.recomputed} of {work.blocks} blocks recomputed\n")
    return limits


def _own_memory(device: torch.device, processes: int) -> int | None:
    """An equal share of the device, where no preflight has divided it; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory / processes)


def workload_of(settings: WorkerSettings) -> Workload | None:
    """What the memory plan is computed from; None in a run that computes nothing."""
    if settings.memory is None:
        return None
    facts, rollouts = facts_of(settings.model.name), settings.memory.rollouts
    return Workload.of(facts, settings.model, settings.train, settings.algorithm, rollouts, settings.takes_stale)


def _read_embeddings(adapter: Adapter, settings: WorkerSettings) -> None:
    """Prompts of a real family are encoded by one process for all workers (`compute/models/encoder.py`)."""
    from spotlight.compute.models.pipeline_adapter import PipelineAdapter

    assert isinstance(adapter, PipelineAdapter)
    facts = facts_of(settings.model.name)
    adapter.read_embeddings(EmbeddingFolder.of(Path(settings.run_folder) / EMBEDDINGS, facts, settings.model))


def own_device(name: str) -> torch.device:
    """Make the slot's device the current one of this process, and return it."""
    device = usable_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # cuDNN's attention fails in the backward pass of FLUX (torch 2.11, H200: an illegal memory access). Rollouts
        # must use the kernels of training, so no worker uses it.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def open_device(name: str) -> None:
    """In a spare process, before its slot is known: create the context and the handle of the matmul library."""
    device = own_device(name)
    if device.type == "cuda":
        square = torch.ones(16, 16, device=device)
        (square @ square).sum().item()
        torch.cuda.empty_cache()


def device_kind(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def rows_of(launch: WorkerLaunch, settings: RowsSettings | None, adapter: Adapter) -> int:
    """Row count from the launch, or measured by this slot or an earlier one of the same kind."""
    if launch.rows is not None:
        return launch.rows
    assert settings is not None, f"{launch.node} has to measure its rows, but its settings do not describe the rollouts"
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

    return MeasuredFigures(Path(launch.shared), "rows", launch.device.name, int).of(kind, measure)


def spare_bytes(adapter: Adapter, trains: bool, processes: int) -> int | None:
    """Bytes that rollouts may use beyond this process's present use; None on a CPU, where memory is not counted."""
    device = adapter.device
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    trained = sum(p.numel() * p.element_size() for p in adapter.transformer.parameters() if p.requires_grad)
    copies = SETS_HELD + (TRAINER_STATE if trains else 0)
    left = MEMORY_SHARE * (free + cached) / processes - copies * trained
    return int(left * (TRAINER_SHARE if trains else 1.0))
