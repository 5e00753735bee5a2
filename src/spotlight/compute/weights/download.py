"""Weights from where they are trained into a file, in order, so that any file system will do.

A device's numbers come through two pinned buffers, one on its way while the other is written; to bring all of them to
the host first takes several times as long, for its memory is not pinned. The file is safetensors; its header is written
here, because the library wants all bytes in host memory, and the library reads it (tests/unit/test_download.py, and
from a device tests/gpu/test_weights_on_device.py).
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from spotlight.compute.weights import upload
from spotlight.compute.weights.upload import BufferPiece, bytes_of, loads
from spotlight.core.errors import WeightsError

DTYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"
}  # fmt: skip
"""What a trainer holds, as safetensors spells it: weights, moments and counts."""
ALIGNMENT = 8
"""Of the first tensor's bytes; the widest types come first, so all others are aligned as well."""
METADATA = "__metadata__"


class Described(msgspec.Struct, frozen=True):
    """One tensor, as the header of the file tells of it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Tensors of one device; the file is whole when this returns, so write under a scratch name and rename."""
    described = _described(tensors)
    sources = {name: bytes_of(tensors[name].detach().contiguous()) for name in described}
    with path.open("wb") as file:
        file.write(_header(described, metadata))
        if any(source.device.type == "cuda" for source in sources.values()):
            for buffer, load in _through_buffers(sources):
                file.write(buffer[: sum(piece.length for piece in load)].numpy().data)
        else:
            for source in sources.values():
                file.write(source.numpy().data)


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the host's memory of tensors of one CUDA device, fetched in the current stream's order.

    A device that copies into memory that is not pinned holds up all that others launch meanwhile, for as long as the
    host takes to find the memory.
    """
    arrived = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    targets = {name: bytes_of(tensor) for name, tensor in arrived.items()}
    for buffer, load in _through_buffers({name: bytes_of(t.detach().contiguous()) for name, t in tensors.items()}):
        for piece in load:
            piece.of(targets).copy_(piece.within(buffer))
    return arrived


def _through_buffers(sources: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, list[BufferPiece]]]:
    """All bytes in order; a buffer may be written over when the next but one is asked for."""
    device = next(iter(sources.values())).device
    buffers = [torch.empty(upload.BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    arrived = [torch.cuda.Event() for _ in buffers]
    stream = torch.cuda.Stream(device)
    # What kernels under way still write to these weights belongs to them.
    stream.wait_stream(torch.cuda.current_stream(device))
    before: list[BufferPiece] = []
    for number, load in enumerate(loads({name: source.numel() for name, source in sources.items()}, len(buffers[0]))):
        with torch.cuda.stream(stream):
            for piece in load:
                piece.within(buffers[number % 2]).copy_(piece.of(sources), non_blocking=True)
            arrived[number % 2].record(stream)
        if before:
            arrived[(number - 1) % 2].synchronize()
            yield buffers[(number - 1) % 2], before
        before, last = load, number % 2
    if before:
        arrived[last].synchronize()
        yield buffers[last], before


def _described(tensors: Mapping[str, Tensor]) -> dict[str, Described]:
    """Where each lies after the header, in this order."""
    described, end = {}, 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        described[name] = Described(dtype_name(name, tensor), tuple(tensor.shape), (start, end))
    return described


def dtype_name(name: str, tensor: Tensor) -> str:
    """The type of a tensor of this name, as safetensors spells it."""
    if tensor.dtype not in DTYPES:
        raise WeightsError(
            f"{name} is of type {tensor.dtype}, which no trained weights are (they are "
            f"{', '.join(str(dtype) for dtype in DTYPES)}); leave it out of what is trained."
        )
    return DTYPES[tensor.dtype]


def _header(described: Mapping[str, Described], metadata: Mapping[str, str]) -> bytes:
    told = msgspec.json.encode({METADATA: dict(metadata), **described})
    told += b" " * (-len(told) % ALIGNMENT)
    return struct.pack("<Q", len(told)) + told
