"""Choices made from memory plans: rows per training forward, recomputed blocks, offload of the VAE, layout of the base.

    chosen = choose_training(work, train, model, memory)      # TrainingLimits: what the trainer uses
    training_layout(work, train, model, ranks=4, memory=...)  # replicated or sharded, with the reason

A setting that is not `auto` is kept. `auto` prefers enough rows for a busy GPU, then as few recomputed blocks as
possible, because recomputing all of them adds about a third to a step. Nothing here changes a gradient.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from spotlight.compute.memory.memory_load import Workload
from spotlight.compute.memory.memory_plan import MemoryPlan, TrainingChoice, gib, rollout_plan, training_plan
from spotlight.compute.models.catalogue import HALF_BYTES
from spotlight.compute.models.config import FLOAT32, ModelConfig
from spotlight.compute.train.config import AUTO, TrainConfig

BUSY_TOKENS = 4096
"""Image tokens per forward from which more rows save little time: on an H200, 4 images of 512x512."""
MOST_ROWS = 4096
"""Largest row count that is considered; the search ends before, when more rows save no time."""
EXAMPLE_RANK = 32
"""Rank of the adapters that a refusal of full fine-tuning proposes."""


Option: TypeAlias = tuple[str, Workload, TrainingChoice, int]
"""Settings that may fit: their text, what they plan, and the number of shards."""


@dataclass(frozen=True, kw_only=True)
class TrainingLimits:
    """What the trainer may use of its device."""

    first: int
    """Rows of the first training forward of a search."""
    most: int | None
    """Largest row count that fits; None if memory is not limited."""
    recomputed: int
    """Number of blocks, from the first one on, that are computed again in the backward pass."""
    offloads_vae: bool
    plan: MemoryPlan
    """With the rows that were set, or the first rows of a search."""


@dataclass(frozen=True)
class Layout:
    """Where the base weights of several training ranks are."""

    kind: Literal["replicated", "sharded"]
    reason: str


def busy_rows(work: Workload) -> int:
    """The smallest power of two of rows that keeps a GPU busy."""
    rows = 1
    while rows * work.tokens.image < BUSY_TOKENS:
        rows *= 2
    return rows


def recomputed_blocks(setting: bool | int | str, blocks: int) -> int | None:
    """Number of recomputed blocks of a setting; None for auto."""
    if setting == AUTO:
        return None
    if isinstance(setting, bool):
        return blocks if setting else 0
    return min(int(setting), blocks)


def choose_training(
    work: Workload, train: TrainConfig, model: ModelConfig, memory: int | None, rollout_rows: int = 1, shards: int = 1
) -> TrainingLimits:
    """The first choice that fits `memory` bytes, or the smallest one; None: memory is not limited."""
    candidates = list(_candidates(work, train, model, rollout_rows))
    if memory is None:
        return _limits(work, candidates[0], None, shards)
    for candidate in candidates:
        if training_plan(work, candidate, shards).total <= memory:
            return _limits(work, candidate, memory, shards)
    return _limits(work, candidates[-1], memory, shards)


def offloads_vae(work: Workload, model: ModelConfig, rows: int, memory: int | None) -> bool:
    """Whether a rollout worker keeps the VAE in host memory between two decodings."""
    if model.offload_vae != AUTO:
        return bool(model.offload_vae)
    return memory is not None and rollout_plan(work, rows).total > memory


def training_layout(work: Workload, train: TrainConfig, model: ModelConfig, ranks: int, memory: int | None) -> Layout:
    """Replicate the base if it fits every rank, because a shard is gathered for every block; else shard it."""
    whole = choose_training(work, train, model, memory).plan
    if ranks == 1:
        return Layout("replicated", f"one rank holds {gib(whole.total)} GiB")
    if memory is None or whole.total <= memory:
        room = "" if memory is None else f" of {gib(memory)}"
        return Layout("replicated", f"each of {ranks} ranks holds {gib(whole.total)}{room} GiB")
    parts = choose_training(work, train, model, memory, shards=ranks).plan
    fits = "which fits" if parts.total <= memory else f"still {gib(parts.total - memory)} GiB too much"
    return Layout(
        "sharded",
        f"a whole copy per rank takes {gib(whole.total)} of {gib(memory)} GiB, sharded over {ranks} ranks "
        f"{gib(parts.total)} GiB, {fits}",
    )


def training_options(
    work: Workload, train: TrainConfig, limits: TrainingLimits, memory: int, ranks: int = 1, rollout_rows: int = 1
) -> list[str]:
    """Settings that would fit, each with its total; empty if none does."""
    choice = TrainingChoice(
        rows=limits.first,
        recomputed=limits.recomputed,
        offloads_vae=limits.offloads_vae,
        rollout_rows=rollout_rows,
    )
    whole, now = replace(choice, recomputed=work.blocks), ranks if train.is_sharded else 1
    recomputes = limits.recomputed < work.blocks
    single: list[Option] = []
    if not limits.offloads_vae and work.facts.vae_parameters:
        single.append(("model.offload_vae=true", work, replace(choice, offloads_vae=True), now))
    if recomputes:
        single.append(("train.gradient_checkpointing=true", work, whole, now))
    single += [(f"train.micro_batch={rows}", work, replace(choice, rows=rows), now) for rows in _halves(limits.first)]
    fewer = [(f"cluster.rows={rows}", work, replace(choice, rollout_rows=rows), now) for rows in _halves(rollout_rows)]
    single += fewer if not train.is_sharded else []
    found = _fitting(single, memory)
    if not found and recomputes:
        both = "train.gradient_checkpointing=true and train.micro_batch"
        found = _fitting(
            [(f"{both}={rows}", work, replace(whole, rows=rows), now) for rows in _halves(limits.first)], memory
        )
    if work.rank is None:
        found += _fitting([(*_with_adapters(work), replace(whole, rows=1), now)], memory)
    shards = [2**power for power in range(1, 7) if 2**power > ranks or (2**power == ranks and not train.is_sharded)]
    names = {count: f"train.parallel=sharded with pipeline.tag=false over {count} ranks" for count in shards}
    return found + _fitting([(names[count], work, replace(whole, rows=1), count) for count in shards], memory)


def _with_adapters(work: Workload) -> tuple[str, Workload]:
    """Adapters instead of all weights, on a base in half precision if the family computes in it."""
    real = work.facts.real
    name, small = f"train.lora.rank={EXAMPLE_RANK}", replace(work, rank=EXAMPLE_RANK)
    if real is None or real.dtypes[0] == FLOAT32:
        return name, small
    return f"{name} and model.dtype={real.dtypes[0]}", replace(small, compute=HALF_BYTES)


def _halves(rows: int) -> Iterator[int]:
    while rows > 1:
        rows //= 2
        yield rows


def rollout_options(work: Workload, rows: int, offloads: bool, memory: int) -> list[str]:
    """Settings of a rollout worker that would fit, each with its total."""
    found = []
    if not offloads and work.facts.vae_parameters:
        total = rollout_plan(work, rows, True).total
        found += [f"model.offload_vae=true ({gib(total)} GiB)"] if total <= memory else []
    for fewer in _halves(rows):
        total = rollout_plan(work, fewer, offloads).total
        if total <= memory:
            found.append(f"cluster.rows={fewer} ({gib(total)} GiB)")
            break
    if work.rank is None:
        name, small = _with_adapters(work)
        total = rollout_plan(small, 1, offloads).total
        found += [f"{name} ({gib(total)} GiB)"] if total <= memory else []
    return found


def _candidates(work: Workload, train: TrainConfig, model: ModelConfig, rollout_rows: int) -> Iterator[TrainingChoice]:
    """Choices in order of preference: busy rows first, few recomputed blocks, then the VAE in host memory."""
    # On a CPU fewer rows may be as fast, so the search begins with one.
    rows = (busy_rows(work) if work.on_gpu else 1) if train.micro_batch == AUTO else train.micro_batch
    fixed = recomputed_blocks(train.gradient_checkpointing, work.blocks)
    offloads = [False, True] if model.offload_vae == AUTO else [bool(model.offload_vae)]
    while True:
        for offload in offloads:
            for blocks in range(work.blocks + 1) if fixed is None else [fixed]:
                yield TrainingChoice(rows=rows, recomputed=blocks, offloads_vae=offload, rollout_rows=rollout_rows)
        if rows == 1 or train.micro_batch != AUTO:
            return
        rows //= 2


def _limits(work: Workload, choice: TrainingChoice, memory: int | None, shards: int) -> TrainingLimits:
    return TrainingLimits(
        first=choice.rows,
        most=None if memory is None else _most_rows(work, choice, memory, shards),
        recomputed=choice.recomputed,
        offloads_vae=choice.offloads_vae,
        plan=training_plan(work, choice, shards),
    )


def _most_rows(work: Workload, choice: TrainingChoice, memory: int, shards: int) -> int:
    """The largest row count from the chosen one on that fits; plans grow with their rows."""
    rows = range(choice.rows + 1, MOST_ROWS + 1)
    return choice.rows + bisect_right(
        rows, memory, key=lambda count: training_plan(work, replace(choice, rows=count), shards).total
    )


def _fitting(tried: Sequence[Option], memory: int) -> list[str]:
    """The options that fit, with their totals; of several values of a setting only the first."""
    found: dict[str, str] = {}
    for name, work, choice, shards in tried:
        total, kind = training_plan(work, choice, shards).total, "ranks" if shards > 1 else name.rpartition("=")[0]
        if total <= memory and kind not in found:
            found[kind] = f"{name} ({gib(total)} GiB)"
    return list(found.values())
