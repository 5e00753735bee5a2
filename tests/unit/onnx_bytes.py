"""Writes small ONNX files byte by byte, for tests of the reader."""

import struct

import numpy as np

FLOAT, INT, STRING, TENSOR, INTS = 1, 2, 3, 4, 7
ELEMENT_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}


def varint(number):
    number &= (1 << 64) - 1
    content = b""
    while number > 0x7F:
        content += bytes([number & 0x7F | 0x80])
        number >>= 7
    return content + bytes([number])


def field(number, value):
    """A number as a varint, bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def ints(*numbers):
    return numbers


def attribute(name, value):
    head = field(1, name.encode())
    if isinstance(value, float):
        return head + varint(2 << 3 | 5) + struct.pack("<f", value) + field(20, FLOAT)
    if isinstance(value, int):
        return head + field(3, value) + field(20, INT)
    if isinstance(value, str):
        return head + field(4, value.encode()) + field(20, STRING)
    if isinstance(value, tuple):
        return head + b"".join(field(8, number) for number in value) + field(20, INTS)
    return head + field(5, tensor("", value)) + field(20, TENSOR)


def tensor(name, array):
    dims = b"".join(field(1, size) for size in array.shape)
    return dims + field(2, ELEMENT_TYPES[array.dtype]) + field(8, name.encode()) + field(9, array.tobytes())


def node(op, inputs, outputs, attributes=(), domain=""):
    content = b"".join(field(1, name.encode()) for name in inputs)
    content += b"".join(field(2, name.encode()) for name in outputs)
    content += field(4, op.encode()) + b"".join(field(5, one) for one in attributes)
    return content + (field(7, domain.encode()) if domain else b"")


def graph(nodes, constants, extra=b""):
    """A graph from `x` to `z`."""
    content = b"".join(field(1, one) for one in nodes)
    content += b"".join(field(5, tensor(name, array)) for name, array in constants.items())
    float_tensor = field(2, field(1, field(1, ELEMENT_TYPES[np.dtype(np.float32)])))
    return content + field(11, field(1, b"x") + float_tensor) + field(12, field(1, b"z") + float_tensor) + extra


def model(content, opset=11):
    return field(1, 6) + field(7, content) + field(8, field(1, b"") + field(2, opset))
