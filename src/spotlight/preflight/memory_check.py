"""The memory plan of a run: what each process takes, what is chosen from it, and a refusal if it does not fit.

Every device is divided among the run's processes on it: each gets what it needs at least, and of the rest a trainer
gets twice the share of a rollout worker. If the rest allows it, each node's spare process keeps a context on the
node's device (`node/spares.py`). On a CPU all processes share the host's memory; too little of it is only a
warning, because the estimate of a process is coarse there and pages can be swapped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import msgspec

from spotlight.compute.memory.choices import (
    TrainingLimits,
    choose_training,
    offloads_vae,
    rollout_options,
    training_layout,
    training_options,
)
from spotlight.compute.memory.memory_load import Workload
from spotlight.compute.memory.memory_plan import CONTEXT, MemoryPlan, encoder_plan, gib, rollout_plan
from spotlight.compute.models.catalogue import ModelFacts
from spotlight.compute.train.config import AUTO, Parallel
from spotlight.config import RunConfig
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.host_memory import host_memory
from spotlight.node.launch import SlotDevice
from spotlight.pools.devices import ROLLER_LOAD, TRAINER_LOAD, USABLE, Device, DeviceTable

FREE_SHARE = 0.9
"""A device with less free memory than this share is in use by other programs."""
SEARCHED_ROWS = 4
"""Rollout rows that a plan counts where they are measured later: the first size of the search."""


@dataclass(frozen=True)
class GpuSlot:
    """One process of the run on a device."""

    node: str
    slot: int
    trains: bool

    @property
    def load(self) -> int:
        return TRAINER_LOAD if self.trains else ROLLER_LOAD


@dataclass(frozen=True, kw_only=True)
class RunMemory:
    """Plans of a run's processes, computed for its devices."""

    config: RunConfig
    """With the way to train that was chosen."""
    work: Workload
    table: DeviceTable
    """With the memory of every slot."""
    limits: TrainingLimits
    """Of the first training rank."""
    rollout: MemoryPlan
    encoder: MemoryPlan | None
    processes: tuple[int, int]
    """Training ranks, and workers that only roll out."""
    problem: str = ""
    """Why the run does not fit; empty if it does."""
    warning: str = ""

    @property
    def plans(self) -> list[MemoryPlan]:
        """The plans of all kinds of processes that the run has."""
        found = [self.limits.plan, *([self.rollout] if self.processes[1] else [])]
        return [*found, *([self.encoder] if self.encoder is not None else [])]

    def sentences(self) -> list[str]:
        """One or two lines for the start of a run."""
        train, limits = self.config.train, self.limits
        rows = f"micro-batch {limits.first}"
        if train.micro_batch == AUTO:
            most = "" if limits.most in (None, limits.first) else f" to {limits.most}"
            rows = f"micro-batch searched from {limits.first}{most}"
        vae = "host memory" if limits.offloads_vae else "device memory"
        parts = [f"training rank {limits.plan}"]
        parts += [f"rollout worker {gib(self.rollout.total)} GiB"] if self.processes[1] else []
        parts += [f"text encoder {gib(self.encoder.total)} GiB, before the workers"] if self.encoder else []
        place = f", VAE in {vae}" if self.work.vae_bytes and self.work.on_gpu else ""
        ranks = f", base shared by {self.config.shards} ranks" if self.config.shards > 1 else ""
        chosen = f"{rows}, {limits.recomputed} of {self.work.blocks} blocks recomputed{place}{ranks}"
        return [f"memory: {'; '.join(parts)}.", f"memory: {chosen}."]


def run_memory(config: RunConfig, facts: ModelFacts, longest_prompt: str, table: DeviceTable) -> RunMemory:
    """Plan the memory of all processes, and divide every device among its slots."""
    work = config.workload(facts, longest_prompt)
    config = with_layout(config, work, table)
    rows = SEARCHED_ROWS if config.cluster.rows == AUTO else config.cluster.rows
    fewest = 1 if config.cluster.rows == AUTO else config.cluster.rows
    by_device = _slots(config, table)
    divided: dict[tuple[str, int], SlotDevice] = {}
    problem = ""
    for device, slots in by_device:
        needs = [_least(config, work, slot, fewest) for slot in slots]
        needed = sum(need.total for need in needs)
        rest = max(0.0, USABLE * device.free - needed)
        contexts = CONTEXT * _nodes_only_on(device.name, table)
        has_spare = rest >= contexts
        rest -= contexts if has_spare else 0
        if needed > device.free and not problem:
            problem = _problem(config, work, device, list(zip(slots, needs, strict=True)), fewest)
        loads = sum(slot.load for slot in slots)
        for slot, need in zip(slots, needs, strict=True):
            memory = int(need.total + rest * slot.load / loads)
            place = slot.node, slot.slot
            divided[place] = msgspec.structs.replace(table.slots[place], memory=memory, has_spare=has_spare)
    encoder = encoder_plan(work)
    if by_device and encoder is not None and not problem and encoder.total > by_device[0][0].free:
        problem = _encoder_problem(by_device[0][0], encoder)
    trainer = next((given.memory for place, given in divided.items() if _trains(config, *place)), None)
    roller = next((given.memory for place, given in divided.items() if not _trains(config, *place)), None)
    limits = choose_training(work, config.train, config.model, trainer, fewest, config.shards)
    rollout = rollout_plan(work, rows, offloads_vae(work, config.model, rows, roller))
    cluster = config.cluster
    counts = (cluster.gang, (cluster.reserved + cluster.spot) * cluster.slots - cluster.gang)
    return RunMemory(
        config=config,
        work=work,
        table=replace(table, slots={place: divided[place] for place in table.slots}),
        limits=limits,
        rollout=rollout,
        encoder=encoder,
        processes=counts,
        problem=problem,
        warning="" if by_device else _host_warning(limits.plan, rollout, counts, encoder),
    )


def check_memory(memory: RunMemory) -> str:
    """Raise if a process does not fit its device; return the warning, or an empty text."""
    if memory.problem:
        raise EnvironmentProblem(memory.problem)
    return memory.warning


def _slots(config: RunConfig, table: DeviceTable) -> list[tuple[Device, list[GpuSlot]]]:
    """The slots of every device, in the order of the table."""
    slots = [
        (given.name, GpuSlot(node, slot, _trains(config, node, slot))) for (node, slot), given in table.slots.items()
    ]
    ordered = sorted(slots, key=lambda each: list(table.devices).index(each[0]))
    grouped = groupby(ordered, key=lambda each: each[0])
    return [(table.devices[name], [slot for _, slot in each]) for name, each in grouped]


def _nodes_only_on(device: str, table: DeviceTable) -> int:
    """Number of nodes with all slots on this device; the spare process of any other node opens none."""
    devices: dict[str, set[str]] = {}
    for (node, _), slot in table.slots.items():
        devices.setdefault(node, set()).add(slot.name)
    return sum(names == {device} for names in devices.values())


def _trains(config: RunConfig, node: str, slot: int) -> bool:
    return f"{node}/{slot}" in config.cluster.training_slots()


def with_layout(config: RunConfig, work: Workload, table: DeviceTable) -> RunConfig:
    """Decide `train.parallel: auto`: shard the base only if a whole copy does not fit a rank that could be sharded."""
    train, cluster = config.train, config.cluster
    can_shard = cluster.gang > 1 and not config.pipeline.tag and not cluster.gang_elastic
    can_shard = can_shard and train.sequence_ranks == 1 and train.micro_batch != AUTO
    devices = [device for device, slots in _slots(config, table) if any(slot.trains for slot in slots)]
    if train.parallel is not Parallel.AUTO or not can_shard or not devices:
        return config
    smallest = min(device.free for device in devices)
    layout = training_layout(work, train, config.model, cluster.gang, int(USABLE * smallest))
    chosen = train.model_copy(update={"parallel": Parallel(layout.kind)})
    return config.model_copy(update={"train": chosen})


def _least(config: RunConfig, work: Workload, slot: GpuSlot, rows: int) -> MemoryPlan:
    """The smallest plan that the settings allow."""
    if slot.trains:
        return choose_training(work, config.train, config.model, 0, rows, config.shards).plan
    return rollout_plan(work, rows, config.model.offload_vae in (AUTO, True) and bool(work.vae_bytes))


def _problem(
    config: RunConfig, work: Workload, device: Device, needs: Sequence[tuple[GpuSlot, MemoryPlan]], rows: int
) -> str:
    """One sentence: what is missing on the device, and which settings would fit."""
    total = sum(plan.total for _, plan in needs)
    if len(needs) == 1:
        slot, plan = needs[0]
        subject = f"the {plan.process} {slot.node} on {device} needs {plan}"
    else:
        listed = ", ".join(f"{slot.node} {gib(plan.total)}" for slot, plan in needs)
        subject = f"the run's {len(needs)} processes on {device} need {gib(total)} GiB ({listed})"
    slot, plan = max(needs, key=lambda each: each[1].total)
    room = device.free - (total - plan.total)
    if slot.trains:
        limits = choose_training(work, config.train, config.model, 0, rows, config.shards)
        options = training_options(work, config.train, limits, room, config.cluster.gang, rows)
    else:
        options = rollout_options(work, rows, plan.of("VAE") == 0, room)
    options += ["more devices or fewer nodes"] if len(needs) > 1 else []
    fitting = f"it would fit with {_or(options)}" if options else "no setting makes it fit; use a larger device"
    return (
        f"{subject}, but {_free(device)}, so {gib(total - device.free)} GiB are missing; {fitting}"
        f"{', or end the other programs on it' if device.free < FREE_SHARE * device.total else ''}."
    )


def _encoder_problem(device: Device, encoder: MemoryPlan) -> str:
    return (
        f"the process of the text encoder on {device} needs {encoder}, but {_free(device)}, so "
        f"{gib(encoder.total - device.free)} GiB are missing; end other programs on the device, or use a larger one."
    )


def _free(device: Device) -> str:
    return f"{gib(device.free)} of {gib(device.total)} GiB are free there"


def _host_warning(rank: MemoryPlan, rollout: MemoryPlan, counts: tuple[int, int], encoder: MemoryPlan | None) -> str:
    """A warning if all processes together exceed the free memory of the host."""
    available = host_memory()[0]
    needed = max(counts[0] * rank.total + counts[1] * rollout.total, encoder.total if encoder is not None else 0)
    if available is None or needed <= available:
        return ""
    return (
        f"the run's {sum(counts)} processes need about {gib(needed)} GiB of host memory, but {gib(available)} GiB are "
        f"available, so {gib(needed - available)} GiB are missing and the machine may swap or end processes; use fewer "
        "nodes, a smaller train.micro_batch, or train.gradient_checkpointing=true."
    )


def _or(options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"
