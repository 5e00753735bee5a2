"""ONNX operations (operator sets 11 and 12) in torch: each maker takes attributes and returns a function of tensors.

The keyword parameters of a maker are the attributes it supports; other attributes and unimplemented values are refused
(tests/unit/test_ocr_torch_net.py). Floating-point tensors are on the device; integer tensors are shapes and indices,
and stay on the host, so that no operation waits for the device.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from spotlight.compute.rewards.ocr.on_gpu.onnx_file import Array, Attribute, Node
from spotlight.core.errors import WeightsError, suggestion

Step: TypeAlias = Callable[..., Tensor]
Pair: TypeAlias = tuple[int, ...]

_INTEGERS = {6: torch.int32, 7: torch.int64}


def bind(node: Node, place: Callable[[Array], Tensor]) -> Step:
    """Return the node's operation with its attributes; raise a WeightsError if it is not supported.

    `place` puts a constant on the device or host, by its type.
    """
    make = _constant(place) if node.op == "Constant" else OPERATIONS.get(node.op)
    if make is None:
        raise WeightsError(
            f"the graph has an operation '{node.op}', which the torch runner does not implement; run the graph with "
            f"onnxruntime, or add it: {suggestion(node.op, OPERATIONS)}"
        )
    known = inspect.signature(make).parameters
    for name, value in node.attributes.items():
        if name not in known:
            raise _refused(node, name, value)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in node.attributes:
            raise _refused(node, name, None)
    try:
        return make(**node.attributes)
    except _Unsupported as unsupported:
        raise _refused(node, unsupported.attribute, node.attributes.get(unsupported.attribute)) from unsupported


class _Unsupported(Exception):
    """The value of this attribute is not implemented."""

    def __init__(self, attribute: str) -> None:
        super().__init__(attribute)
        self.attribute = attribute


def _refused(node: Node, attribute: str, value: Attribute | None) -> WeightsError:
    shown = "(left out)" if value is None else value
    return WeightsError(
        f"the operation '{node.op}' has the attribute {attribute} = {shown}, which the torch runner does not "
        "implement, so its result would be wrong; run the graph with onnxruntime."
    )


def _symmetric(pads: Pair) -> Pair:
    half = len(pads) // 2
    if pads[:half] != pads[half:]:
        raise _Unsupported("pads")
    return pads[:half]


def _constant(place: Callable[[Array], Tensor]) -> Callable[..., Step]:
    def constant(*, value: Array) -> Step:
        tensor = place(value)
        return lambda: tensor

    return constant


def _conv(
    *,
    kernel_shape: Pair,
    strides: Pair = (1, 1),
    pads: Pair = (0, 0, 0, 0),
    dilations: Pair = (1, 1),
    group: int = 1,
) -> Step:
    padding = _symmetric(pads)
    if len(kernel_shape) != 2:
        raise _Unsupported("kernel_shape")

    def conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(x, weight, bias, strides, padding, dilations, group)

    return conv


def _batch_normalization(*, epsilon: float = 1e-5, momentum: float = 0.9) -> Step:
    # Inference ignores the momentum, but files contain the attribute.
    def normalise(x: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(x, mean, variance, scale, shift, training=False, eps=epsilon)

    return normalise


def _average_pool(
    *,
    kernel_shape: Pair,
    strides: Pair = (1, 1),
    pads: Pair = (0, 0, 0, 0),
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Step:
    padding = _symmetric(pads)
    if len(kernel_shape) != 2:
        raise _Unsupported("kernel_shape")
    if ceil_mode:
        raise _Unsupported("ceil_mode")

    def pool(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, kernel_shape, strides, padding, count_include_pad=bool(count_include_pad))

    return pool


def _hard_sigmoid(*, alpha: float = 0.2, beta: float = 0.5) -> Step:
    return lambda x: (x * alpha + beta).clamp(0.0, 1.0)


def _reduce_mean(*, axes: Pair, keepdims: int = 1) -> Step:
    return lambda x: x.mean(dim=axes, keepdim=bool(keepdims))


def _squeeze(*, axes: Pair) -> Step:
    return lambda x: torch.squeeze(x, axes)


def _unsqueeze(*, axes: Pair) -> Step:
    if len(axes) != 1:
        raise _Unsupported("axes")
    return lambda x: torch.unsqueeze(x, axes[0])


def _transpose(*, perm: Pair) -> Step:
    return lambda x: x.permute(perm)


def _softmax(*, axis: int = 1) -> Step:
    def softmax(x: Tensor) -> Tensor:
        # These operator sets flatten all axes from `axis` on into one, which equals torch's softmax only for the last.
        if axis not in (-1, x.ndim - 1):
            raise WeightsError(
                f"the graph takes a softmax over axis {axis} of {x.ndim}, which joins several axes; run the graph with "
                "onnxruntime."
            )
        return x.softmax(dim=-1)

    return softmax


def _concat(*, axis: int) -> Step:
    return lambda *parts: torch.cat(parts, dim=axis)


def _cast(*, to: int) -> Step:
    if to not in _INTEGERS:
        raise _Unsupported("to")
    return lambda x: x.to("cpu", _INTEGERS[to])


def _reshape() -> Step:
    def reshape(x: Tensor, shape: Tensor) -> Tensor:
        # A 0 keeps the size of that axis.
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(shape.tolist())]
        return x.reshape(sizes)

    return reshape


def _slice() -> Step:
    def cut(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
        chosen: Sequence[int] = range(len(starts)) if axes is None else axes.tolist()
        strides: Sequence[int] = [1] * len(starts) if steps is None else steps.tolist()
        if min(strides) < 1:
            raise WeightsError(
                f"the graph takes a slice in steps of {min(strides)}, which the torch runner does not implement; run "
                "the graph with onnxruntime."
            )
        index = [slice(None)] * x.ndim
        for axis, start, end, step in zip(chosen, starts.tolist(), ends.tolist(), strides, strict=True):
            index[axis] = slice(start, end, step)
        return x[tuple(index)]

    return cut


def _plain(function: Step) -> Callable[[], Step]:
    """Maker of an operation without attributes."""
    return lambda: function


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "Add": _plain(torch.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Clip": _plain(torch.clamp),
    "Concat": _concat,
    "Conv": _conv,
    "Div": _plain(torch.div),
    "Erf": _plain(torch.erf),
    "GlobalAveragePool": _plain(lambda x: x.mean(dim=tuple(range(2, x.ndim)), keepdim=True)),
    "HardSigmoid": _hard_sigmoid,
    "Identity": _plain(lambda x: x),
    "MatMul": _plain(torch.matmul),
    "Mul": _plain(torch.mul),
    "Pow": _plain(torch.pow),
    "ReduceMean": _reduce_mean,
    "Relu": _plain(torch.relu),
    "Reshape": _reshape,
    "Shape": _plain(lambda x: torch.tensor(x.shape)),
    "Sigmoid": _plain(torch.sigmoid),
    "Slice": _slice,
    "Softmax": _softmax,
    "Sqrt": _plain(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _plain(torch.sub),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
