"""Memory plans: named lines in bytes of a training rank, a rollout worker and the text encoder's process; no torch.

    training_plan(work, TrainingChoice(rows=8, recomputed=60))     # a rank that also rolls out
    rollout_plan(work, rows=8)
    encoder_plan(work)

A plan's total is the peak of the process on its device. Phases that do not overlap share a line: activations of
training, the step of the optimizer, and rollouts with their decoding. Constants of a GPU are measured by
`benchmarks/memory/calibrate.py`; `benchmarks/memory/` compares predicted and measured peaks.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spotlight.compute.memory.activations import FLOAT
from spotlight.compute.memory.memory_load import Workload

GIB = 2**30
SETS_HELD = 3
"""Published sets per worker: the current behaviour, the evaluated average, and one more. That is the next behaviour
while it loads, or the previous one while samples of it are in flight."""
ROUNDED_HELD = 2
"""Published sets that previews hold rounded to the compute type: the current and the previous behaviour."""
STAGES = 1
"""Copies of the set in use, in memory that never moves."""
WORKSPACE = 96 * 2**20
"""Workspaces of cuBLAS and cuDNN in torch's allocator."""
CONTEXT = 760 * 2**20
"""Memory of the driver's context and the loaded kernels, outside torch's allocator: 758 MiB on an H200."""
FRAGMENTATION = 0.05
"""Bytes that the allocator holds between its blocks, as a share of the allocated ones: 2 to 10 % on an H200."""
HOST_PROCESS = 400 * 2**20
"""Host memory of a worker's interpreter and libraries."""
ENCODER_ROW = 0.05
"""Activations of one prompt in the text encoder, as a share of its weights."""
OVERHEAD = "context and fragmentation"
LINES = (
    "base weights", "fp8 weights", "text encoders", "adapters", "weight sets", "gradients", "optimizer", "activations",
    "published sets", "VAE", "decoding", "workspaces", OVERHEAD,
)  # fmt: skip
"""Names of all lines, in the order of a table."""


class MemoryLine(NamedTuple):
    """One line of a plan."""

    name: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class TrainingChoice:
    """What a rank's memory can be changed by, without other results."""

    rows: int
    """Rows of a training forward."""
    recomputed: int
    """Blocks whose activations are computed again in the backward pass."""
    offloads_vae: bool = False
    rollout_rows: int = 1


@dataclass(frozen=True)
class MemoryPlan:
    """Peak memory of one process on its device."""

    process: str
    lines: tuple[MemoryLine, ...]

    @property
    def total(self) -> int:
        return sum(line.bytes for line in self.lines)

    @property
    def allocated(self) -> int:
        """The part in torch's allocator: `torch.cuda.max_memory_allocated`."""
        return self.total - self.of(OVERHEAD)

    def of(self, name: str) -> int:
        """Bytes of a line; 0 if the plan has no such line."""
        return sum(line.bytes for line in self.lines if line.name == name)

    def __str__(self) -> str:
        """The total and the lines of at least a tenth of it."""
        shown = [f"{line.name} {gib(line.bytes)}" for line in self.lines if 10 * line.bytes >= self.total]
        return f"{gib(self.total)} GiB ({', '.join(shown)})"


def training_plan(work: Workload, choice: TrainingChoice, shards: int = 1) -> MemoryPlan:
    """A training rank, which also rolls out; `shards` ranks divide the base, and the trained weights if these are the
    base."""
    trained = work.trained_bytes if work.rank is not None else _sharded(work, work.trained_bytes, shards)
    decoding = _decoding(work, choice.offloads_vae)
    training = work.training_bytes(choice.rows, choice.recomputed) + (decoding if work.rollouts.overlaps else 0)
    # AdamW's step over all tensors at once holds one more copy of them.
    working = max(training, trained, work.forward_bytes(choice.rollout_rows) + decoding)
    lines = [
        MemoryLine("base weights", _sharded(work, work.base_bytes, shards)),
        MemoryLine("fp8 weights", work.fp8_bytes),
        MemoryLine("adapters", trained if work.rank is not None else 0),
        MemoryLine("weight sets", work.copies * trained),
        MemoryLine("gradients", (2 if work.searches else 1) * trained),
        MemoryLine("optimizer", 2 * trained),
        MemoryLine("activations", working),
        MemoryLine("published sets", _published(work, trained, has_stage=work.compiled and shards == 1)),
        MemoryLine("VAE", 0 if choice.offloads_vae else work.vae_bytes),
    ]
    return _plan("training rank", work, lines)


def rollout_plan(work: Workload, rows: int, offloads_vae: bool = False) -> MemoryPlan:
    """A worker that rolls out; images are decoded while it steps."""
    trained = work.trained_bytes
    lines = [
        MemoryLine("base weights", work.base_bytes),
        MemoryLine("fp8 weights", work.fp8_bytes),
        MemoryLine("adapters", trained if work.rank is not None else 0),
        MemoryLine("activations", work.forward_bytes(rows)),
        MemoryLine("published sets", _published(work, trained, has_stage=work.compiled)),
        MemoryLine("VAE", 0 if offloads_vae else work.vae_bytes),
        MemoryLine("decoding", _decoding(work, offloads_vae)),
    ]
    return _plan("rollout worker", work, lines)


def encoder_plan(work: Workload) -> MemoryPlan | None:
    """The process that encodes the prompts and ends before the workers start; None if the model has no encoder."""
    weights = work.compute * work.facts.text_parameters
    if not weights:
        return None
    lines = [MemoryLine("text encoders", weights), MemoryLine("activations", round(ENCODER_ROW * weights))]
    return _plan("text encoder", work, lines)


def gib(size: float) -> str:
    """GiB with one decimal, or two below ten."""
    return f"{size / GIB:.2f}" if size < 9.995 * GIB else f"{size / GIB:.1f}"


def _plan(process: str, work: Workload, lines: list[MemoryLine]) -> MemoryPlan:
    allocated = sum(line.bytes for line in lines)
    if work.on_gpu:
        overhead = CONTEXT + round(FRAGMENTATION * allocated)
        lines = [*lines, MemoryLine("workspaces", WORKSPACE), MemoryLine(OVERHEAD, overhead)]
    else:
        lines = [*lines, MemoryLine(OVERHEAD, HOST_PROCESS)]
    return MemoryPlan(process, tuple(line for line in lines if line.bytes))


def _published(work: Workload, trained: int, has_stage: bool) -> int:
    """Sets on the device; on a CPU they are the pages of the node's store."""
    if not work.on_gpu:
        return 0
    if has_stage:
        return (SETS_HELD + STAGES) * trained
    rounded = ROUNDED_HELD * trained * work.compute // FLOAT if work.rollouts.previews and work.compute < FLOAT else 0
    return SETS_HELD * trained + rounded


def _decoding(work: Workload, offloads_vae: bool) -> int:
    """Peak of decoding one image; an offloaded VAE is on the device only then."""
    return work.decoding_bytes + (work.vae_bytes if offloads_vae else 0)


def _sharded(work: Workload, size: int, shards: int) -> int:
    """A rank's share, and two gathered blocks: the present one and the next."""
    if shards == 1:
        return size
    return min(size, size // shards + 2 * size // work.blocks)
