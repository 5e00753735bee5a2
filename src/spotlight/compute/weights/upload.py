"""Copies weights from mapped files or shared memory to a device through two pinned buffers, filled by several threads.

A device reads pageable memory several times slower than pinned memory, and pinning the store's pages costs a new
process more than it saves (benchmarks/newcomer/ measures both). So one pinned buffer is filled while the other is
copied. On a CPU nothing is copied: the pages of the store are the weights.
Invariant: the copy equals the source bit for bit (tests/gpu/test_weights_on_device.py).
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)
BUFFER_BYTES = 256 << 20
FILLERS = 8
"""Threads that copy into a pinned buffer; a single one is slower than the device."""


@dataclass(frozen=True)
class BufferPiece:
    """A part of one tensor's bytes, and its position in a buffer."""

    name: str
    start: int
    length: int
    at: int

    def of(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return tensors[self.name][self.start : self.start + self.length]

    def within(self, buffer: Tensor) -> Tensor:
        return buffer[self.at : self.at + self.length]


def upload(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the tensors on the device; without a copy if they are there already and it is not CUDA."""
    if device.type != "cuda" or not tensors:
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    sources = {name: bytes_of(tensor.contiguous()) for name, tensor in tensors.items()}
    # Not `empty_like`, which keeps strides: bytes of a tensor that is not contiguous would be those of a copy.
    arrived = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for name, tensor in tensors.items()}
    targets = {name: bytes_of(tensor) for name, tensor in arrived.items()}
    buffers = [torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    freed = [torch.cuda.Event() for _ in buffers]
    stream = torch.cuda.Stream(device)
    # The targets' memory may have belonged to another tensor, which kernels under way still write to.
    stream.wait_stream(torch.cuda.current_stream(device))
    with ThreadPoolExecutor(FILLERS) as fillers, torch.cuda.stream(stream):
        for number, load in enumerate(loads({name: source.numel() for name, source in sources.items()}, BUFFER_BYTES)):
            buffer, free = buffers[number % 2], freed[number % 2]
            free.synchronize()
            list(fillers.map(lambda part: part.within(buffer).copy_(part.of(sources)), _shared_out(load)))  # noqa: B023
            for piece in load:
                piece.of(targets).copy_(piece.within(buffer), non_blocking=True)
            free.record(stream)
    stream.synchronize()
    return arrived


def moved(module: ModuleT, device: torch.device) -> ModuleT:
    """Move a module to the device, its parameters on the host as mapped files are; tied parameters stay tied."""
    on_host = {name: each.data for name, each in module.named_parameters() if each.device.type == "cpu"}
    for name, tensor in upload(on_host, device).items():
        module.get_parameter(name).data = tensor
    # Its buffers are small.
    return module.to(device)


def loads(sizes: Mapping[str, int], room: int) -> Iterator[list[BufferPiece]]:
    """Divide the bytes of all tensors, in order, into loads of at most `room` bytes; a large tensor is cut."""
    load: list[BufferPiece] = []
    used = 0
    for name, size in sizes.items():
        start = 0
        while start < size:
            if used == room:
                yield load
                load, used = [], 0
            length = min(size - start, room - used)
            load.append(BufferPiece(name, start, length, used))
            start, used = start + length, used + length
    if load:
        yield load


def _shared_out(load: list[BufferPiece]) -> list[BufferPiece]:
    """Cut pieces further, so that all threads copy about the same number of bytes."""
    most = max(1 << 20, sum(piece.length for piece in load) // FILLERS)
    return [
        BufferPiece(piece.name, piece.start + cut, min(most, piece.length - cut), piece.at + cut)
        for piece in load
        for cut in range(0, piece.length, most)
    ]


def bytes_of(tensor: Tensor) -> Tensor:
    """View the tensor's memory as bytes."""
    return tensor.reshape(-1).view(torch.uint8)
