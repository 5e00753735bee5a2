"""Assigns a device to every slot of a local run; free of torch.

    found = probe(model.device)                     # a separate process queries the driver, or torch
    table = assign(cluster, found, model.device)    # DeviceTable: (node, slot) -> SlotDevice

`table_for` does both; `preflight/memory_check.py` then divides each device's memory among slots. The local pool runs
all nodes on one machine, so one table covers every slot of every node: reserved nodes first, then spot nodes, then
stand-ins. It is keyed by the node's name, so a node keeps its devices over all its incarnations
(tests/processes/test_node_devices.py).

Invariant (tests/unit/test_devices.py): slots share a device only with `cluster.share_devices`, or if it is the CPU.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from spotlight.compute.models.config import CPU, ModelConfig, device_of
from spotlight.core.errors import ConfigError, EnvironmentProblem
from spotlight.core.node_spec import NodeSpec
from spotlight.node.launch import SlotDevice
from spotlight.pools.config import ClusterConfig, PoolKind

PROBE = "spotlight.node.device_probe"
PROBE_S = 120.0
"""Time limit of the probe: importing torch takes seconds on a quiet machine, contexts on eight GPUs a few more."""
USABLE = 0.97
"""Share of a device's free memory that is divided; the rest is a margin for other programs."""
TRAINER_LOAD, ROLLER_LOAD = 2, 1
"""Weights of slots on shared devices: a slot that trains counts twice, because other slots on its device slow it."""


class Device(msgspec.Struct, frozen=True):
    """One GPU, as torch reports it."""

    name: str
    """Device name as in torch: cuda:0."""
    model: str
    free: int
    """Free bytes at the time of the probe."""
    total: int

    def __str__(self) -> str:
        return f"{self.name} ({self.model})"


class Devices(msgspec.Struct, frozen=True):
    """The GPUs of this machine; empty if only the CPU is requested."""

    torch: str = ""
    cuda: str | None = None
    """CUDA version of the torch build; None for a build without CUDA."""
    nccl: str | None = None
    """Version of NCCL, by which GPUs exchange tensors; None if torch has none, or after a quick query."""
    devices: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceTable:
    """The device of every slot; slots that it does not name compute on the CPU."""

    slots: Mapping[tuple[str, int], SlotDevice] = field(default_factory=dict)
    """By node name and slot number."""
    devices: Mapping[str, Device] = field(default_factory=dict)
    """GPUs with their memory, by device name."""

    def of(self, spec: NodeSpec) -> tuple[SlotDevice, ...]:
        """Devices of a node's slots, in slot order."""
        return tuple(self.slots.get((spec.name, slot), SlotDevice()) for slot in range(spec.slots))

    def __str__(self) -> str:
        """One line: every device with its slots; a node of one slot is shown by its name only."""
        several = {node for node, slot in self.slots if slot > 0}
        shown: dict[str, list[str]] = {}
        for (node, slot), device in self.slots.items():
            shown.setdefault(device.name, []).append(f"{node}/{slot}" if node in several else node)
        ordered = sorted(shown, key=lambda name: device_of(name)[1] or 0)
        parts = []
        for model, names in groupby(ordered, key=lambda name: self.devices[name].model):
            parts.append(", ".join(f"{name} {' '.join(shown[name])}" for name in names) + f" ({model})")
        return f"devices: {'; '.join(parts) or CPU}"


def table_for(model: ModelConfig, cluster: ClusterConfig, stand_ins: bool) -> DeviceTable:
    """Return the devices of a run's slots, or raise the reason why it cannot have them.

    `stand_ins` is whether nodes may stand in for spot nodes. A paced run computes nothing and needs no device.
    """
    if cluster.pace is not None or device_of(model.device)[0] == CPU:
        return DeviceTable()
    return assign(cluster, probe(model.device), model.device, stand_ins)


def probe(device: str) -> Devices:
    """Query torch's devices in a separate process; raise if `device` is not among them."""
    kind, number = device_of(device)
    if kind == CPU:
        return Devices()
    try:
        found = query(is_quick=True)
    except EnvironmentProblem as error:
        raise EnvironmentProblem(f"model.device is {device}, but {error}, or set model.device=cpu.") from error
    if found.cuda is None:
        raise EnvironmentProblem(
            f"model.device is {device}, but torch {found.torch} is a build without CUDA, so no worker could use the "
            "device; install a CUDA build of torch, or set model.device=cpu."
        )
    if len(found.devices) <= (number or 0):
        raise EnvironmentProblem(
            f"model.device is {device}, but torch {found.torch} finds {_counted(found)}{_why(found)}; free a GPU, name "
            "one in CUDA_VISIBLE_DEVICES, or set model.device=cpu."
        )
    return found


def query(is_quick: bool = False) -> Devices:
    """The build of torch and its devices, from a separate process; the message of its error has no end.

    A quick query asks the driver if it can, without NCCL: importing torch takes seconds.
    """
    command = [sys.executable, "-m", PROBE, *(("--quick",) if is_quick else ())]
    try:
        probed = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=True)
        # The last line only: libraries may print before it.
        return msgspec.json.decode(probed.stdout.rstrip().rpartition(b"\n")[2], type=Devices)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        reason = output.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(
            f"torch's devices cannot be listed ({reason}); see what `python -m {PROBE}` prints"
        ) from error


def assign(cluster: ClusterConfig, found: Devices, device: str = "cuda", stand_ins: bool = False) -> DeviceTable:
    """Assign a device to every slot; more slots than devices need `cluster.share_devices`."""
    kind, number = device_of(device)
    if kind == CPU:
        return DeviceTable()
    spot = cluster.spot_nodes() if cluster.pool is PoolKind.LOCAL else []
    nodes = [*cluster.reserved_nodes(), *spot, *(cluster.stand_ins() if stand_ins else ())]
    slots = [(spec.name, slot, slot < spec.trains) for spec in nodes for slot in range(spec.slots)]
    usable = [found.devices[number]] if number is not None else list(found.devices)
    if len(slots) > len(usable) and not cluster.share_devices:
        if cluster.pool is not PoolKind.LOCAL:
            raise ConfigError(
                f"cluster.reserved is {cluster.reserved} with {cluster.slots} slots each, but torch finds "
                f"{_counted(found)}{_visible()}, and reserved nodes and training ranks stay on this machine with "
                f"cluster.pool={cluster.pool.value}; set cluster.share_devices=true, or use fewer of them."
            )
        raise ConfigError(_too_few(nodes, len(slots), found, device))
    load: Counter[str] = Counter()
    chosen: dict[tuple[str, int], str] = {}
    for node, slot, trains in slots:
        # min returns the first of equals, so slots take the devices in order as long as some are free.
        least = min(usable, key=lambda each: load[each.name]).name
        load[least] += TRAINER_LOAD if trains else ROLLER_LOAD
        chosen[node, slot] = least
    processes = Counter(chosen.values())
    return DeviceTable(
        {place: SlotDevice(name, processes[name]) for place, name in chosen.items()},
        {each.name: each for each in usable},
    )


def own_devices(spec: NodeSpec, device: str, shares: bool) -> tuple[SlotDevice, ...]:
    """Devices of the slots of a machine that is one node; its slots divide the memory of a device evenly."""
    if device_of(device)[0] == CPU:
        return tuple(SlotDevice() for _ in range(spec.slots))
    found = probe(device)
    number = device_of(device)[1]
    usable = [found.devices[number]] if number is not None else list(found.devices)
    if spec.slots > len(usable) and not shares:
        raise EnvironmentProblem(
            f"node {spec.name} has {spec.slots} slots but torch finds {_counted(found)}{_visible()}, and slots share a "
            "device only if the run sets cluster.share_devices; join with fewer --slots."
        )
    chosen = [usable[slot % len(usable)] for slot in range(spec.slots)]
    processes = Counter(each.name for each in chosen)
    return tuple(
        SlotDevice(each.name, processes[each.name], int(USABLE * each.free / processes[each.name])) for each in chosen
    )


def gpu_models() -> tuple[str, ...]:
    """Models of this machine's GPUs; none if torch finds none, or cannot be asked."""
    try:
        return tuple(each.model for each in query(is_quick=True).devices)
    except EnvironmentProblem:
        return ()


def _too_few(nodes: list[NodeSpec], slots: int, found: Devices, device: str) -> str:
    places = f"{slots} slots ({_listed(spec.name for spec in nodes)})"
    if device_of(device)[1] is not None:
        return (
            f"model.device is {device} but the run has {places}, and slots share a device only on request; "
            "set cluster.share_devices=true, or model.device=cuda for a device each."
        )
    return (
        f"the run has {places} but torch finds {_counted(found)}{_visible()}, and slots share a device only on "
        "request; set cluster.share_devices=true, or use fewer nodes (cluster.reserved, cluster.spot)."
    )


def _counted(found: Devices) -> str:
    count = len(found.devices)
    return f"{count or 'no'} CUDA device{'' if count == 1 else 's'}"


def _why(found: Devices) -> str:
    warned = f" ({found.warnings[-1]})" if found.warnings else ""
    return f"{_visible()}{warned}"


def _visible() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" (CUDA_VISIBLE_DEVICES is '{visible}')"


def _listed(nodes: Iterable[str]) -> str:
    names = list(dict.fromkeys(nodes))
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} to {names[-1]}"
