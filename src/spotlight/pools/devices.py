"""Which device every slot of a local run computes on; free of torch.

    found = probe(model.device)                                     # a process of its own asks torch
    table = assign(cluster, found, model.device)                    # DeviceTable: (node, slot) -> SlotDevice
    check_memory(table, found, cluster, weights_bytes, adapters)    # the weights fit

`table_for` does all three. The local pool runs all nodes on one machine, so one table gives every slot of every node
its device: reserved nodes first, then spot nodes, then stand-ins. It is keyed by the node's name, so a node keeps its
devices over all its incarnations (tests/processes/test_node_devices.py).

Invariant: no two slots have one device unless `cluster.share_devices` says so or it is the CPU
(tests/unit/test_devices.py).
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
from spotlight.pools.config import ClusterConfig

PROBE = "spotlight.node.device_probe"
PROBE_S = 120.0
"""Importing torch takes seconds on a quiet machine, and a context on each of eight GPUs a few more."""
TRAINER_LOAD, ROLLER_LOAD = 2, 1
"""Where devices are shared, a slot that trains counts twice: what previews beside it slows the training."""
TRAINER_COPIES, ROLLER_COPIES = 6, 2
"""Copies of the trained weights that a slot keeps at least. One that trains: theta, gradients, two moments of AdamW,
the average, and a published set; one that rolls out: the base and a published set."""
GIB = 2**30


class Device(msgspec.Struct, frozen=True):
    """One GPU, as torch sees it."""

    name: str
    """As torch names it: cuda:0."""
    model: str
    free: int
    """Bytes, at the time of the probe."""
    total: int

    def __str__(self) -> str:
        return f"{self.name} ({self.model})"


class Devices(msgspec.Struct, frozen=True):
    """The GPUs of this machine; none where only the CPU was asked for."""

    torch: str = ""
    cuda: str | None = None
    """The CUDA that torch was built with; None for a build without it."""
    devices: tuple[Device, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceTable:
    """The device of every slot; slots that it does not name compute on the CPU."""

    slots: Mapping[tuple[str, int], SlotDevice] = field(default_factory=dict)
    """By node name and slot number."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Of the devices, by name."""

    def of(self, spec: NodeSpec) -> tuple[SlotDevice, ...]:
        """The devices of a node's slots, in their order."""
        return tuple(self.slots.get((spec.name, slot), SlotDevice()) for slot in range(spec.slots))

    def __str__(self) -> str:
        """One line: every device with its slots. A node of one slot goes by its name alone."""
        several = {node for node, slot in self.slots if slot > 0}
        shown: dict[str, list[str]] = {}
        for (node, slot), device in self.slots.items():
            shown.setdefault(device.name, []).append(f"{node}/{slot}" if node in several else node)
        ordered = sorted(shown, key=lambda name: device_of(name)[1] or 0)
        parts = []
        for model, names in groupby(ordered, key=lambda name: self.models[name]):
            parts.append(", ".join(f"{name} {' '.join(shown[name])}" for name in names) + f" ({model})")
        return f"devices: {'; '.join(parts) or CPU}"


def table_for(
    model: ModelConfig, cluster: ClusterConfig, weights_bytes: int, adapters: bool, stand_ins: bool
) -> DeviceTable:
    """The devices of a run's slots, or the reason why it cannot have them.

    `weights_bytes` is the size of the file with the base weights, `adapters` whether only those are trained,
    `stand_ins` whether nodes may stand in for spot nodes. A paced run computes nothing and needs no device.
    """
    if cluster.pace is not None or device_of(model.device)[0] == CPU:
        return DeviceTable()
    found = probe(model.device)
    table = assign(cluster, found, model.device, stand_ins)
    check_memory(table, found, cluster, weights_bytes, adapters)
    return table


def probe(device: str) -> Devices:
    """What torch sees here, asked in a process of its own; refused where it does not see `device`."""
    kind, number = device_of(device)
    if kind == CPU:
        return Devices()
    try:
        asked = subprocess.run([sys.executable, "-m", PROBE], capture_output=True, timeout=PROBE_S, check=True)
        # The last line: libraries may have written others before.
        found = msgspec.json.decode(asked.stdout.rstrip().rpartition(b"\n")[2], type=Devices)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        told = getattr(error, "stderr", None) or str(error).encode()
        reason = told.decode(errors="replace").strip().rpartition("\n")[2]
        raise EnvironmentProblem(
            f"model.device is {device}, but torch cannot say which devices there are ({reason}); see what "
            f"`python -m {PROBE}` prints, or set model.device=cpu."
        ) from error
    if found.cuda is None:
        raise EnvironmentProblem(
            f"model.device is {device}, but torch {found.torch} is a build without CUDA, so that no worker could use "
            "it; install a CUDA build of torch, or set model.device=cpu."
        )
    if len(found.devices) <= (number or 0):
        raise EnvironmentProblem(
            f"model.device is {device}, but torch {found.torch} sees {_counted(found)}{_why(found)}; free a GPU, name "
            "one in CUDA_VISIBLE_DEVICES, or set model.device=cpu."
        )
    return found


def assign(cluster: ClusterConfig, found: Devices, device: str = "cuda", stand_ins: bool = False) -> DeviceTable:
    """A device for every slot, from one table; more slots than devices need `cluster.share_devices`."""
    kind, number = device_of(device)
    if kind == CPU:
        return DeviceTable()
    nodes = [*cluster.reserved_nodes(), *cluster.spot_nodes(), *(cluster.stand_ins() if stand_ins else ())]
    slots = [(spec.name, slot, spec.trains and slot == 0) for spec in nodes for slot in range(spec.slots)]
    usable = [found.devices[number]] if number is not None else list(found.devices)
    if len(slots) > len(usable) and not cluster.share_devices:
        raise ConfigError(_too_few(nodes, len(slots), found, device))
    load: Counter[str] = Counter()
    chosen: dict[tuple[str, int], str] = {}
    for node, slot, trains in slots:
        # min keeps the first of equals, so that slots take the devices in order as long as some are free.
        least = min(usable, key=lambda each: load[each.name]).name
        load[least] += TRAINER_LOAD if trains else ROLLER_LOAD
        chosen[node, slot] = least
    processes = Counter(chosen.values())
    return DeviceTable(
        {place: SlotDevice(name, processes[name]) for place, name in chosen.items()},
        {each.name: each.model for each in usable},
    )


def check_memory(
    table: DeviceTable, found: Devices, cluster: ClusterConfig, weights_bytes: int, adapters: bool
) -> None:
    """The copies of the weights that its slots keep must fit every device: a lower bound, activations come on top."""
    trainers = {spec.name for spec in cluster.reserved_nodes() if spec.trains}
    needed: Counter[str] = Counter()
    for (node, slot), given in table.slots.items():
        copies = TRAINER_COPIES if node in trainers and slot == 0 else ROLLER_COPIES
        needed[given.name] += weights_bytes * (1 if adapters else copies)
    for device in found.devices:
        if needed[device.name] > device.free:
            nodes = [node for (node, _), given in table.slots.items() if given.name == device.name]
            raise EnvironmentProblem(
                f"{device} has {device.free / GIB:.1f} of {device.total / GIB:.1f} GiB free, but the run's "
                f"{len(nodes)} processes there ({_listed(nodes)}) keep at least {needed[device.name] / GIB:.1f} GiB of "
                "weights; end what else runs on it, use more devices or fewer nodes, or train adapters only "
                "(train.lora)."
            )


def _too_few(nodes: list[NodeSpec], slots: int, found: Devices, device: str) -> str:
    places = f"{slots} slots ({_listed(spec.name for spec in nodes)})"
    if device_of(device)[1] is not None:
        return (
            f"model.device is {device} but the run has {places}, and slots share a device only where "
            "that is asked for; set cluster.share_devices=true, or model.device=cuda for a device each."
        )
    return (
        f"the run has {places} but torch sees {_counted(found)}{_visible()}, and slots share a device only where that "
        "is asked for; set cluster.share_devices=true, or use fewer nodes (cluster.reserved, cluster.spot)."
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
