"""Weights from a neighbour on the same node, device to device: offered as handles, copied, and let go.

    holder: offer(tensors) --bytes--> newcomer: take(offer) -> copies ; the offer must stay alive until then

No pickle: an offer is msgpack of the handles that CUDA gives out for memory of another process. It says which weights
and which digest; whoever takes them checks both, as after any load. Works between processes on one device and between
devices that can map each other's memory; where a device cannot, `take` raises and the store is used instead.
A newcomer that dies in the middle may pin the holder's memory until that exits, so nothing is offered but whole
published sets, of which a worker holds few (tests/gpu/test_weights_on_device.py; measured by
benchmarks/newcomer/).
"""

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from spotlight.core.errors import WeightsError
from spotlight.core.work import WeightsId

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""Of weights; nothing else is taken from another process."""


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """What CUDA needs to map one tensor's memory into another process."""

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
    """One set of weights, as its holder has it on its device."""

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
                f"{len(data)} bytes are no offer of weights ({error}); take them from the node's store."
            ) from error


def offer(weights: WeightsId, digest: str, tensors: Mapping[str, Tensor]) -> Offer:
    """Handles of tensors on a CUDA device; the caller keeps the tensors until they were taken."""
    handles = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise WeightsError(
                f"{name} of {weights} is on {tensor.device}, whose memory no other process can map; offer weights that "
                "are on a CUDA device."
            )
        try:
            shared = tensor.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise WeightsError(
                f"{name} of {weights} cannot be shared with another process ({error}), because the device or its "
                "allocator does not allow it; take the set from the node's store."
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
    """Copies on this process's device; the holder's memory is let go before this returns."""
    taken = {}
    try:
        # Handles that are opened before the process has woken its device are a segmentation fault, not an error.
        torch.empty(0, device=device)
        for handle in offered.handles:
            storage = torch.UntypedStorage._new_shared_cuda(
                handle.device, handle.memory, handle.size, handle.memory_offset, handle.counter,
                handle.counter_offset, handle.event, handle.needs_event,
            )  # fmt: skip
            theirs = torch.empty(0, dtype=DTYPES[handle.dtype], device=f"cuda:{handle.device}")
            theirs.set_(storage, handle.offset, handle.shape, handle.stride)
            taken[handle.name] = theirs.to(device, copy=True)
            del theirs, storage
        torch.cuda.synchronize(device)
    except (RuntimeError, KeyError) as error:
        raise WeightsError(
            f"{offered.weights} could not be copied from the neighbour that offered it ({error}), so that it is gone "
            "or its device cannot be mapped from here; take it from the node's store."
        ) from error
    return taken
