"""Writes weights from the trainer's device to a file, sequentially, so that any file system works.

Bytes of a device pass through two pinned buffers: one is filled while the other is written. Copying everything to
pageable host memory first takes several times as long. The file is safetensors. Its header is written here, because the
library needs all bytes in host memory; the library reads the file (tests/unit/test_download.py, and from a device
tests/gpu/test_weights_on_device.py).
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
"""Types of a trainer's weights, moments and counts, with their safetensors names."""
ALIGNMENT = 8
"""Alignment of the first tensor's bytes; the widest types come first, so all others are aligned as well."""
METADATA = "__metadata__"


class HeaderEntry(msgspec.Struct, frozen=True):
    """Header entry of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors of one device; the file is whole only on return, so write under a scratch name and rename."""
    described = _header_entries(tensors)
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
    """Copy tensors of one CUDA device to host memory, ordered by the current stream.

    A direct copy into pageable memory would block every kernel launch while the host allocates that memory.
    """
    arrived = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    targets = {name: bytes_of(tensor) for name, tensor in arrived.items()}
    for buffer, load in _through_buffers({name: bytes_of(t.detach().contiguous()) for name, t in tensors.items()}):
        for piece in load:
            piece.of(targets).copy_(piece.within(buffer))
    return arrived


def _through_buffers(sources: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, list[BufferPiece]]]:
    """Yield all bytes in order; a buffer is overwritten two iterations later."""
    device = next(iter(sources.values())).device
    buffers = [torch.empty(upload.BUFFER_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    arrived = [torch.cuda.Event() for _ in buffers]
    stream = torch.cuda.Stream(device)
    # Kernels under way may still write to these weights.
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


def _header_entries(tensors: Mapping[str, Tensor]) -> dict[str, HeaderEntry]:
    """Header entries in file order."""
    described, end = {}, 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        described[name] = HeaderEntry(dtype_name(name, tensor), tuple(tensor.shape), (start, end))
    return described


def dtype_name(name: str, tensor: Tensor) -> str:
    """Safetensors name of the tensor's type; raises WeightsError for an unsupported type."""
    if tensor.dtype not in DTYPES:
        raise WeightsError(
            f"{name} is of type {tensor.dtype}, but trained weights can only be "
            f"{', '.join(str(dtype) for dtype in DTYPES)}; do not train it."
        )
    return DTYPES[tensor.dtype]


def _header(described: Mapping[str, HeaderEntry], metadata: Mapping[str, str]) -> bytes:
    header = msgspec.json.encode({METADATA: dict(metadata), **described})
    header += b" " * (-len(header) % ALIGNMENT)
    return struct.pack("<Q", len(header)) + header
