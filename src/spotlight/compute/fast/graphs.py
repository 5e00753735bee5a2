"""CUDA graphs of rollout forwards: one launch instead of two thousand.

A forward of one 512x512 image through 60 blocks launches 1,800 kernels: 57 ms of launches for 38 ms of work on an H200.
Where kernels take longer than their launches, a graph still removes the gaps between them. A graph holds addresses, so
inputs are copied into tensors of its own, and weight sets into tensors that never move (`Resident`).

    new shape -> warm-up forwards -> captured -> replayed from then on

All graphs share one pool of memory, because one thread runs them one after another and copies each result. Invariant: a
replay computes the bits of the forward that was captured (tests/gpu/test_fast_forwards.py).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Tensor]
WARM_UPS = 2
MOST_GRAPHS = 32
"""Shapes with a graph; each keeps its own inputs and output in memory. Further shapes run without."""


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor


class GraphedForwards:
    """Runs forwards without gradients by graph; used by one thread."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, _Captured] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._captured)

    def run(self, kind: Hashable, forward: Forward, inputs: Sequence[Tensor]) -> Tensor:
        """Return forward(*inputs); `kind` names all else that the forward depends on."""
        key = (kind, *((tuple(tensor.shape), tensor.dtype) for tensor in inputs))
        if key not in self._captured:
            if len(self) == MOST_GRAPHS:
                return forward(*inputs)
            self._captured[key] = self._capture(forward, inputs)
        captured = self._captured[key]
        for own, given in zip(captured.inputs, inputs, strict=True):
            own.copy_(given)
        captured.graph.replay()
        return captured.output.clone()

    def _capture(self, forward: Forward, inputs: Sequence[Tensor]) -> _Captured:
        own = tuple(tensor.clone() for tensor in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                forward(*own)
        torch.cuda.current_stream().wait_stream(side)
        # The pool of the graphs is another one than that of the warm-ups.
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        # Another thread decodes images meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = forward(*own)
        self._pool = graph.pool()
        return _Captured(graph, own, output)
