"""Runs an ONNX graph with torch on a device.

The default is float64, for two reasons. Products of float32 follow the process's TF32 setting, which training chooses
and may use in another thread, so it can be neither relied on nor changed here. And in float64 the rounding does not
depend on the batch size. Values that depend only on constants are computed once; other values are dropped after their
last use. Invariant: the output equals onnxruntime's up to the rounding of float32 (tests/unit/test_ocr_torch_net.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spotlight.compute.rewards.ocr.on_gpu.onnx_file import Array, Graph
from spotlight.compute.rewards.ocr.on_gpu.torch_ops import Step, bind
from spotlight.core.errors import WeightsError

OPSETS = (11, 12)


@dataclass(frozen=True, eq=False)
class _Bound:
    """A step, the names of its values, and of those that no later step needs."""

    run: Step
    inputs: tuple[str, ...]
    output: str
    dead: tuple[str, ...]


class TorchNet:
    """A graph of one input and one output; runs on batches of any size."""

    def __init__(self, graph: Graph, device: torch.device, dtype: torch.dtype = torch.float64) -> None:
        if graph.opset not in OPSETS:
            raise WeightsError(
                f"the graph uses operator set {graph.opset}, but the torch runner implements only "
                f"{' and '.join(map(str, OPSETS))}; run the graph with onnxruntime."
            )
        if len(graph.inputs) != 1 or len(graph.outputs) != 1:
            raise WeightsError(
                f"the graph has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs, but the torch runner "
                "takes one of each; run the graph with onnxruntime."
            )
        self._device, self._dtype = device, dtype
        self._input, self._output = graph.inputs[0], graph.outputs[0]
        self._constants = {name: self._place(array) for name, array in graph.constants.items()}
        self._steps = _scheduled(self._live_steps(graph), self._output)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for a batch."""
        values = {self._input: x.to(self._device, self._dtype)}
        with torch.inference_mode():
            for step in self._steps:
                values[step.output] = step.run(*self._gathered(step.inputs, values))
                for name in step.dead:
                    del values[name]
        return values[self._output]

    def _place(self, array: Array) -> Tensor:
        # A copy, because torch accepts no read-only memory, such as a file's bytes.
        tensor = torch.from_numpy(np.array(array))
        return tensor.to(self._device, self._dtype) if tensor.is_floating_point() else tensor

    def _live_steps(self, graph: Graph) -> list[_Bound]:
        """Steps that depend on the input; the values of all other steps become constants."""
        steps = []
        for node in graph.nodes:
            run = bind(node, self._place)
            if len(node.outputs) != 1:
                raise WeightsError(
                    f"the operation '{node.op}' has {len(node.outputs)} outputs, but the torch runner supports one; "
                    "run the graph with onnxruntime."
                )
            if all(name in self._constants or not name for name in node.inputs):
                with torch.inference_mode():
                    self._constants[node.outputs[0]] = run(*self._gathered(node.inputs, {}))
            else:
                steps.append(_Bound(run, node.inputs, node.outputs[0], ()))
        return steps

    def _gathered(self, names: tuple[str, ...], values: dict[str, Tensor]) -> Iterator[Tensor | None]:
        for name in names:
            yield None if not name else values[name] if name in values else self._constants[name]


def _scheduled(steps: list[_Bound], output: str) -> tuple[_Bound, ...]:
    """Add to each step the values that it is the last to use."""
    made = {step.output for step in steps}
    needed = {output}
    scheduled = []
    for step in reversed(steps):
        used = {step.output, *(name for name in step.inputs if name in made)}
        scheduled.append(_Bound(step.run, step.inputs, step.output, tuple(sorted(used - needed))))
        needed |= used
    return tuple(reversed(scheduled))
