"""Weight copy between neighbours: weights come from the worker itself, a neighbour's device, or the node's store.

`LoadingCore` decides which, and `WeightCopies` carries its effects out on the model.

Weights never come directly from another machine's trainer: the agent copies the set into the node's store before it
sends Load (`agent_core.py`). Every rank that publishes a set keeps a copy, because the trained weights change. The
rank that wrote the file applies its copy on Adopt while the agent still copies the file, and the Load that follows
finds it held; the others apply theirs on Load. On a CPU the pages of the store
are the weights, so no copy is made. In every case the digest is read back from the model, compared with the announced
one and reported by Held; the model's results are bit-identical (tests/unit/test_neighbours_copy.py,
tests/unit/test_own_weights.py). `WeightCopies` is owned by the model's thread and never waits.

A copy from device to device is offered as handles, copied and released:

    holder: offer(tensors) --bytes--> newcomer: take(offer) -> copies ; the holder keeps the tensors until then

No pickle: an offer is msgpack of CUDA's inter-process memory handles. The newcomer reads
the digest back, as after any load. It works between processes on one device and between devices that can map each
other's memory; elsewhere `take` raises and the store is used. A newcomer that dies during the copy may pin the holder's
memory until the holder exits, so only whole published sets are offered, of which a worker holds few
(tests/gpu/test_weights_on_device.py; measured by benchmarks/newcomer/).
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import torch
from torch import Tensor

from spotlight.compute.weights.resident import Resident, own_copy
from spotlight.compute.weights.store import NodeStore
from spotlight.core.errors import WeightsError
from spotlight.core.work import Policy, WeightsId
from spotlight.node.loading_core import (
    DamagedCopy,
    KeepOwn,
    LoadEffect,
    OfferHeld,
    ReadHeld,
    TakeOffered,
    TakeOwn,
    TakeStored,
)

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""Allowed dtypes of weights from another process."""


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """CUDA's arguments to map one tensor's memory into another process."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: int
    memory: bytes
    size: int
    memory_offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    needs_event: bool


class Offer(msgspec.Struct, frozen=True):
    """One set of weights on its holder's device."""

    weights: WeightsId
    digest: str
    handles: tuple[Handle, ...]

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Offer":
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise WeightsError(
                f"{len(data)} bytes do not decode as an offer of weights ({error}); load them from the node's store."
            ) from error


def offer(weights: WeightsId, digest: str, tensors: Mapping[str, Tensor]) -> Offer:
    """Return handles of tensors on a CUDA device; the caller keeps the tensors until they are copied."""
    handles = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise WeightsError(
                f"{name} of {weights} is on {tensor.device}, whose memory no other process can map; offer weights on "
                "a CUDA device."
            )
        try:
            shared = tensor.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise WeightsError(
                f"{name} of {weights} cannot be shared with another process ({error}): the device or its allocator "
                "does not allow it; load the set from the node's store."
            ) from error
        device, memory, size, memory_offset, counter, counter_offset, event, needs_event = shared
        handles.append(
            Handle(
                name, str(tensor.dtype), tuple(tensor.shape), tensor.stride(),
                int(tensor.storage_offset()), device, memory, size, memory_offset, counter, counter_offset, event,
                needs_event,
            )
        )  # fmt: skip
    return Offer(weights, digest, tuple(handles))


def take(offered: Offer, device: torch.device) -> dict[str, Tensor]:
    """Copy an offer to this process's device; the holder's memory is released before this returns."""
    taken = {}
    try:
        # Opening a handle before the process has a CUDA context is a segmentation fault, not an error.
        torch.empty(0, device=device)
        for handle in offered.handles:
            storage = torch.UntypedStorage._new_shared_cuda(
                handle.device, handle.memory, handle.size, handle.memory_offset, handle.counter,
                handle.counter_offset, handle.event, handle.needs_event,
            )  # fmt: skip
            mapped = torch.empty(0, dtype=DTYPES[handle.dtype], device=f"cuda:{handle.device}")
            mapped.set_(storage, handle.offset, handle.shape, handle.stride)
            taken[handle.name] = mapped.to(device, copy=True)
            del mapped, storage
        torch.cuda.synchronize(device)
    except (RuntimeError, KeyError) as error:
        raise WeightsError(
            f"{offered.weights} could not be copied from the neighbour that offered it ({error}): the neighbour is "
            "gone, or its device cannot be mapped from here; load the set from the node's store."
        ) from error
    return taken


log = logging.getLogger("spotlight.worker")
Trained: TypeAlias = Callable[[Policy], Mapping[str, Tensor]]


class WeightCopies:
    """The sets on a worker's device, and the copies of the sets that it wrote."""

    def __init__(self, resident: Resident, store: NodeStore, trained: Trained) -> None:
        """`trained` gives the weights that this worker publishes."""
        self._resident = resident
        self._store = store
        self._trained = trained
        self._own: dict[WeightsId, Mapping[str, Tensor]] = {}
        self.held = resident.held
        self.drop = resident.drop

    def drop_own(self, weights: WeightsId) -> None:
        self._own.pop(weights, None)

    def perform(self, effect: LoadEffect) -> str | bytes | bool | DamagedCopy | None:
        """Carry out an effect of the core; returns its completion."""
        match effect:
            case KeepOwn(weights=weights):
                return self._keep_own(weights)
            case TakeOwn():
                return self._from_own_copy(effect)
            case TakeOffered():
                return self._from_neighbour(effect)
            case TakeStored(load=load):
                # The announced folder is on disk where shared memory is too small.
                store = NodeStore(Path(load.path).parent) if load.path else self._store
                try:
                    return self._resident.load(store.open(load.weights))
                except WeightsError as error:
                    return DamagedCopy(str(error))
            case ReadHeld(weights=weights):
                return dict(self._resident.held())[weights]
            case OfferHeld(weights=weights):
                # If the memory cannot be shared, the newcomer loads from the store.
                with contextlib.suppress(WeightsError):
                    held = dict(self._resident.held())[weights]
                    return offer(weights, held, self._resident.tensors(weights)).to_bytes()
                return b""

    def _keep_own(self, weights: WeightsId) -> bool:
        try:
            self._own[weights] = own_copy(self._trained(weights.policy))
        except torch.OutOfMemoryError:
            log.warning("no device memory to keep a copy of %s; it will be fetched", weights)
            return False
        return True

    def _from_own_copy(self, effect: TakeOwn) -> str | None:
        try:
            return self._resident.adopt(effect.weights, self._own.pop(effect.weights))
        except WeightsError as error:
            log.warning("%s will be fetched: the copy that this worker kept cannot be used: %s", effect.weights, error)
            return None

    def _from_neighbour(self, effect: TakeOffered) -> str | None:
        try:
            copied = take(Offer.from_bytes(effect.handles), self._resident.device)
            return self._resident.adopt(effect.load.weights, copied)
        except WeightsError:
            return None
