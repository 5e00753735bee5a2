"""Reads the graph of an ONNX file: its nodes, their attributes and its constants, directly from the wire format.

Supports only the content of a frozen inference graph. Invariant (tests/unit/test_ocr_onnx_file.py): fields that affect
the graph's result (subgraphs, functions, sparse or external tensors, other kinds of attribute, other element types) are
refused, never skipped; only descriptive fields are skipped.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.errors import WeightsError

Array: TypeAlias = NDArray[Any]
"""Array of float32, int32 or int64."""

Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | Array

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ELEMENT_TYPES: Mapping[int, np.dtype[Any]] = {1: np.dtype("<f4"), 6: np.dtype("<i4"), 7: np.dtype("<i8")}
# Field numbers of each message that are read; other fields hold names, descriptions and shapes.
_MODEL_GRAPH, _MODEL_OPSET, _MODEL_FUNCTIONS = 7, 8, 25
_GRAPH_NODE, _GRAPH_CONSTANT, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_INPUT, _NODE_OUTPUT, _NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_INT32S, _TENSOR_INT64S = 1, 2, 4, 5, 7
_TENSOR_NAME, _TENSOR_RAW = 8, 9
_TENSOR_ELSEWHERE = frozenset({3, 6, 10, 11, 13, 14})
"""Fields with segments, strings, doubles, unsigned numbers and external files, which are refused."""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: named values in, named values out; an absent optional input is ''."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph; its nodes are in executable order."""

    opset: int
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class _Field:
    """One field of a message: its number, wire type and raw value."""

    __slots__ = ("number", "value", "wire")

    def __init__(self, number: int, wire: int, value: int | bytes) -> None:
        self.number, self.wire, self.value = number, wire, value

    def content(self) -> bytes:
        if not isinstance(self.value, bytes):
            raise _damaged(f"field {self.number} holds a number instead of bytes")
        return self.value

    def integers(self) -> list[int]:
        """Signed integers: one, or a packed list."""
        if isinstance(self.value, int):
            return [_signed(self.value)]
        numbers, at = [], 0
        while at < len(self.value):
            number, at = _varint(self.value, at)
            numbers.append(_signed(number))
        return numbers

    def integer(self) -> int:
        return self.integers()[-1]

    def floats(self) -> list[float]:
        """32-bit floats: one, or a packed list."""
        content = struct.pack("<I", self.value) if isinstance(self.value, int) else self.value
        if len(content) % 4:
            raise _damaged(f"field {self.number} holds {len(content)} bytes of 4-byte numbers")
        return list(struct.unpack(f"<{len(content) // 4}f", content))

    def text(self) -> str:
        try:
            return self.content().decode("utf-8")
        except UnicodeDecodeError as error:
            raise _damaged(f"field {self.number} is no text") from error


def read_graph(content: bytes) -> Graph:
    """Parse the graph of an ONNX file's bytes; raise a WeightsError if it is damaged or not supported."""
    opsets: list[int] = []
    graphs: list[bytes] = []
    for field in _fields(content):
        if field.number == _MODEL_GRAPH:
            graphs.append(field.content())
        elif field.number == _MODEL_OPSET:
            opsets.append(_standard_opset(field.content()))
        elif field.number == _MODEL_FUNCTIONS:
            raise _not_supported("model-local functions")
    if len(graphs) != 1 or len(opsets) != 1:
        raise _damaged(f"it has {len(graphs)} graphs and {len(opsets)} operator sets instead of one each")
    return _graph(graphs[0], opsets[0])


def _graph(content: bytes, opset: int) -> Graph:
    nodes, constants, inputs, outputs = [], {}, [], []
    for field in _fields(content):
        if field.number == _GRAPH_NODE:
            nodes.append(_node(field.content()))
        elif field.number == _GRAPH_CONSTANT:
            name, array = _tensor(field.content())
            constants[name] = array
        elif field.number == _GRAPH_INPUT:
            inputs.append(_name(field.content()))
        elif field.number == _GRAPH_OUTPUT:
            outputs.append(_name(field.content()))
        elif field.number == _GRAPH_SPARSE:
            raise _not_supported("sparse tensors")
    # Old files list their constants among the inputs too.
    free = tuple(name for name in inputs if name not in constants)
    return Graph(opset, tuple(nodes), constants, free, tuple(outputs))


def _standard_opset(content: bytes) -> int:
    version = 0
    for field in _fields(content):
        if field.number == 1 and field.text():
            raise _not_supported(f"the operator set '{field.text()}'")
        if field.number == 2:
            version = field.integer()
    return version


def _node(content: bytes) -> Node:
    op, inputs, outputs, attributes = "", [], [], {}
    for field in _fields(content):
        if field.number == _NODE_INPUT:
            inputs.append(field.text())
        elif field.number == _NODE_OUTPUT:
            outputs.append(field.text())
        elif field.number == _NODE_OP:
            op = field.text()
        elif field.number == _NODE_ATTRIBUTE:
            name, value = _attribute(field.content())
            attributes[name] = value
        elif field.number == _NODE_DOMAIN and field.text():
            raise _not_supported(f"an operation of the domain '{field.text()}'")
    return Node(op, tuple(inputs), tuple(outputs), attributes)


def _attribute(content: bytes) -> tuple[str, Attribute]:
    """Name and value of an attribute; its kind selects the value's field, absent for zeros and empty lists."""
    fields = list(_fields(content))
    name = next((field.text() for field in fields if field.number == 1), "")
    kind = next((field.integer() for field in fields if field.number == 20), 0)
    if kind == 1:
        return name, next((field.floats()[-1] for field in fields if field.number == 2), 0.0)
    if kind == 2:
        return name, next((field.integer() for field in fields if field.number == 3), 0)
    if kind == 3:
        return name, next((field.text() for field in fields if field.number == 4), "")
    if kind == 4:
        for field in fields:
            if field.number == 5:
                return name, _tensor(field.content())[1]
    if kind == 6:
        return name, tuple(number for field in fields if field.number == 7 for number in field.floats())
    if kind == 7:
        return name, tuple(number for field in fields if field.number == 8 for number in field.integers())
    raise _not_supported(f"an attribute '{name}' of kind {kind}")


def _tensor(content: bytes) -> tuple[str, Array]:
    name, kind = "", 0
    shape: list[int] = []
    raw: bytes | None = None
    listed: list[float] | list[int] = []
    for field in _fields(content):
        if field.number == _TENSOR_DIMS:
            shape += field.integers()
        elif field.number == _TENSOR_TYPE:
            kind = field.integer()
        elif field.number == _TENSOR_FLOATS:
            listed = [*listed, *field.floats()]
        elif field.number in (_TENSOR_INT32S, _TENSOR_INT64S):
            listed = [*listed, *field.integers()]
        elif field.number == _TENSOR_NAME:
            name = field.text()
        elif field.number == _TENSOR_RAW:
            raw = field.content()
        elif field.number in _TENSOR_ELSEWHERE:
            raise _not_supported(f"the tensor '{name}', whose numbers are kept in field {field.number}")
    if kind not in _ELEMENT_TYPES:
        raise _not_supported(f"the tensor '{name}' of element type {kind}")
    dtype = _ELEMENT_TYPES[kind]
    if raw is not None and len(raw) % dtype.itemsize:
        raise _damaged(f"the tensor '{name}' has {len(raw)} bytes of {dtype.itemsize}-byte numbers")
    array = np.frombuffer(raw, dtype) if raw is not None else np.array(listed, dtype)
    if array.size != int(np.prod(shape, dtype=np.int64)) or min(shape, default=1) < 0:
        raise _damaged(f"the tensor '{name}' of shape {tuple(shape)} has {array.size} numbers")
    return name, array.reshape(shape)


def _name(content: bytes) -> str:
    return next((field.text() for field in _fields(content) if field.number == 1), "")


def _fields(content: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(content, at)
            yield _Field(number, wire, value)
            continue
        if wire == _BYTES:
            size, at = _varint(content, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise _damaged(f"byte {at} starts a field of the unknown wire type {wire}")
        if at + size > len(content):
            raise _damaged(f"a field of {size} bytes starts {len(content) - at} bytes before the end")
        chunk = content[at : at + size]
        yield _Field(number, wire, chunk if wire == _BYTES else int.from_bytes(chunk, "little"))
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(content) or shift > 63:
            raise _damaged(f"the number that ends at byte {at} is truncated or too long")
        byte = content[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _damaged(what: str) -> WeightsError:
    return WeightsError(f"the ONNX file is damaged: {what}; restore the file.")


def _not_supported(what: str) -> WeightsError:
    return WeightsError(
        f"the ONNX file uses {what}, which this reader does not support, so its result would be wrong; run the graph "
        "with onnxruntime."
    )
