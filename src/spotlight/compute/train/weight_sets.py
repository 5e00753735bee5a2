"""Named copies of the trainable weights beside the trained ones (theta).

NFT holds three: theta, `old` (the behaviour policy, which is published) and `ema` (which evaluation uses). A KL term
measures the distance from `reference`. To train on stale samples, NFT also holds `before`, the policy that drew them,
and Flow-GRPO `start`, theta at the start of the iteration. The same code serves full fine-tuning and LoRA, where the
sets hold adapters only. Invariant: outside `using`, the module holds theta, and gradients belong to theta alone. Run
the other sets' forwards before the trained one, because recomputation in a checkpointed backward sees the weights of
that moment.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spotlight.compute.train.boxes import box_of


class WeightSet(StrEnum):
    """Names of the copies."""

    OLD = "old"
    EMA = "ema"
    REFERENCE = "reference"
    BEFORE = "before"
    """`old` of the previous iteration."""
    START = "start"
    """Theta at the start of the iteration."""


class WeightSets:
    """Owns the copies of one module's trainable parameters; each starts as theta."""

    def __init__(self, module: nn.Module, sets: Iterable[WeightSet], is_late: bool = False) -> None:
        """`is_late`: make the copies at `fill`, so that a model which is sharded first never has whole copies."""
        self.theta = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.names = tuple(sorted(set(sets)))
        self._copies: dict[WeightSet, dict[str, Tensor]] = {}
        if not is_late:
            self.fill()

    def fill(self) -> None:
        """Make the copies, unless they exist."""
        for which in self.names:
            if which not in self._copies:
                self._copies[which] = {name: p.detach().clone() for name, p in self.theta.items()}

    @contextmanager
    def using(self, which: WeightSet | None) -> Iterator[None]:
        """Compute with that copy inside the block; None is theta."""
        if which is None:
            yield
            return
        if self._is_sharded:
            with self._filled(self._copies[which]):
                yield
            return
        trained = {name: p.data for name, p in self.theta.items()}
        try:
            for name, p in self.theta.items():
                p.data = self._copies[which][name]
            yield
        finally:
            for name, p in self.theta.items():
                p.data = trained[name]

    def shard(self, module: nn.Module, sharded_like: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Follow the module, whose parameters were divided between ranks under the same names."""
        self.theta = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._copies = {
            which: {name: sharded_like(tensor, self.theta[name]) for name, tensor in copies.items()}
            for which, copies in self._copies.items()
        }

    @property
    def _is_sharded(self) -> bool:
        return any(isinstance(p, DTensor) for p in self.theta.values())

    @contextmanager
    def _filled(self, copies: Mapping[str, Tensor]) -> Iterator[None]:
        """Copy values instead of swapping memory: FSDP2 gathers from the memory that it divided."""
        theta = self._rows(self.theta.values())
        trained = [rows.clone() for rows in theta]
        try:
            with torch.no_grad():
                torch._foreach_copy_(theta, self._rows(copies[name] for name in self.theta))
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(theta, trained)

    def _rows(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """The numbers that this rank holds."""
        return [box_of(tensor.detach()).data for tensor in tensors]

    def __getitem__(self, which: WeightSet) -> Mapping[str, Tensor]:
        self.fill()
        return self._copies[which]

    @torch.no_grad()
    def follow(self, which: WeightSet, decay: float) -> None:
        """copy <- decay * copy + (1 - decay) * theta."""
        copies, theta = self._rows(self._copies[which].values()), self._rows(self.theta.values())
        if decay == 0.0:
            torch._foreach_copy_(copies, theta)
        else:
            torch._foreach_lerp_(copies, theta, 1.0 - decay)

    @torch.no_grad()
    def copy(self, source: WeightSet, target: WeightSet) -> None:
        torch._foreach_copy_(self._rows(self._copies[target].values()), self._rows(self._copies[source].values()))
