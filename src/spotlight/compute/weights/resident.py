"""Published weight sets that a worker's model holds and computes with.

Invariant: inside `use(w)` the module computes with exactly the bytes published as w, and outside with its own
parameters (tests/unit/test_weight_store.py). A set names exactly the trainable parameters and belongs to the same base
weights; loading reads its digest back from the module.

Previews may use a set that is rounded to the type of the base weights: with bf16 weights, fp32 adapters cost a quarter
to a third more than rounded ones, and a preview only ranks. If all weights are of one type, nothing is rounded.

On a CPU the parameters are the pages of the node's store, without a copy; they must not be written to, so `use` turns
gradients off. On another device a set is copied there once. A model with CUDA graphs computes with a stage: one copy of
the set in use, in tensors that never move, because graphs hold addresses.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.store import MappedWeights
from spotlight.compute.weights.upload import upload
from spotlight.core.errors import WeightsError
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

BASE = Version(0)
SHOWN_NAMES = 4


class Resident:
    """The weight sets of one module; a set names the parameters that are trainable when this is built."""

    def __init__(self, module: nn.Module, base_digest: str, capacity: int = 2, fast: FastModel | None = None) -> None:
        self.base_digest = base_digest
        self._fast = fast
        self.capacity = capacity
        """Number of sets held at a time: by default the current and the previous one."""
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        # The type of the large weights; a model may have a few weights in a wider type.
        types = {parameter.dtype for parameter in (self._frozen or self._trainable).values()}
        self._narrow = min(types, key=lambda dtype: dtype.itemsize)
        self.rounds = any(p.dtype.itemsize > self._narrow.itemsize for p in self._trainable.values())
        """Whether previews compute with fewer bits: in fp8, or because base weights are narrower than trained ones."""
        if fast is not None:
            # It rounds adapters in every forward.
            self.rounds = fast.has_fp8
        self._written = {name: p._version for name, p in module.named_parameters()}
        self._sets: dict[WeightsId, Mapping[str, Tensor]] = {}
        self._digests: dict[WeightsId, str] = {}
        self._rounded: dict[WeightsId, Mapping[str, Tensor]] = {}
        self._stage: Mapping[str, Tensor] = {}
        """Tensors that graphs compute with; never freed while there may be graphs."""
        self._on_stage: WeightsId | None = None
        self.in_use: WeightsId | None = None
        """The set that the module computes with, inside `use`."""
        self.is_exact = True
        """Whether it computes with the unrounded set."""

    def release(self) -> None:
        """Let go of the module's parameters and of all sets: the model does not roll out any more."""
        for held in (self._trainable, self._frozen, self._written, self._sets, self._digests, self._rounded):
            held.clear()
        self._stage, self._on_stage = {}, None

    @property
    def copies_sets(self) -> bool:
        """Whether sets are copied to the device; on a CPU the pages of the store are the weights."""
        return self.device.type == "cuda"

    @property
    def device(self) -> torch.device:
        return next(iter({**self._trainable, **self._frozen}.values())).device

    def load(self, stored: MappedWeights) -> str:
        """Load a set; return the digest read back from the module."""
        if stored.base_digest != self.base_digest:
            raise WeightsError(
                f"{stored.weights} belongs to base weights {stored.base_digest} but this worker's model has "
                f"{self.base_digest}, so it would mix two models; start the worker from the run's base weights."
            )
        self._check_names(stored.weights, stored.tensors)
        found = self._hold(stored.weights, lambda: self._on_device(stored.tensors))
        if found != stored.fingerprint:
            self.drop(stored.weights)
            raise WeightsError(
                f"{stored.weights} was published with digest {stored.fingerprint} but the model holds {found} after "
                "loading it, so it was altered on the way; fetch it again."
            )
        return found

    def adopt(self, weights: WeightsId, tensors: Mapping[str, Tensor]) -> str:
        """Take ownership of a set on this module's device; return the digest read back, which the caller compares."""
        self._check_names(weights, tensors)
        return self._hold(weights, lambda: tensors)

    def tensors(self, weights: WeightsId) -> Mapping[str, Tensor]:
        """Return a loaded set, for a neighbour to copy."""
        return self._sets[weights]

    def _hold(self, weights: WeightsId, fetch: Callable[[], Mapping[str, Tensor]]) -> str:
        if weights not in self._sets and len(self._sets) >= self.capacity:
            held = ", ".join(str(held) for held in sorted(self._sets))
            raise WeightsError(
                f"{weights} cannot be loaded beside {held}, because a worker holds at most {self.capacity} sets; drop "
                "one that is no longer needed."
            )
        self._sets[weights] = fetch()
        self._rounded.pop(weights, None)
        if self._on_stage == weights:
            self._on_stage = None
        found = self._digests[weights] = self.held_digest(weights)
        return found

    def _on_device(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Upload the tensors in the order of the module's names."""
        return upload({name: tensors[name] for name in self._trainable}, self.device)

    def drop(self, weights: WeightsId) -> None:
        """Release a set, if it is held."""
        self._sets.pop(weights, None)
        self._rounded.pop(weights, None)
        self._digests.pop(weights, None)

    def holds(self, weights: WeightsId) -> bool:
        return weights in self._sets or weights.version == BASE

    def held(self) -> tuple[tuple[WeightsId, str], ...]:
        """The loaded sets with their digests, without the base weights, which are always held."""
        return tuple((weights, self._digests[weights]) for weights in sorted(self._sets))

    def digest_of(self, weights: WeightsId) -> str:
        """Digest read back when the set was loaded; the run's base digest for the base weights."""
        self._check_held(weights)
        return self._digests.get(weights, self.base_digest)

    def held_digest(self, weights: WeightsId) -> str:
        """Compute the digest of the parameters that the module holds while it uses the set."""
        with self.use(weights):
            if weights not in self._sets:
                return self.base_digest
            return fingerprint({name: p.detach() for name, p in self._trainable.items()})

    @contextmanager
    def use(self, weights: WeightsId, is_exact: bool = True) -> Iterator[None]:
        """Compute with that set inside the block, without gradients; rounded if not exact."""
        self._check_held(weights)
        chosen = self._sets.get(weights, {})
        self._check_unwritten(weights, self._frozen if chosen else self._frozen | self._trainable)
        if not is_exact:
            chosen = self._rounded_set(weights)
        if self._fast is not None and self._fast.graphs is not None and chosen:
            chosen = self._staged(weights, chosen)
        own = {name: self._trainable[name].data for name in chosen}
        before = self.in_use, self.is_exact
        try:
            for name, tensor in chosen.items():
                self._trainable[name].data = tensor
            self.in_use, self.is_exact = weights, is_exact
            with torch.no_grad(), self._rolling_out(is_exact, is_own=not chosen):
                yield
        finally:
            self.in_use, self.is_exact = before
            for name, tensor in own.items():
                self._trainable[name].data = tensor

    def _rolling_out(self, is_exact: bool, is_own: bool) -> AbstractContextManager[None]:
        if self._fast is None:
            return nullcontext()
        return self._fast.rolling_out("own" if is_own else "stage", is_preview=not is_exact)

    def _staged(self, weights: WeightsId, chosen: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Copy a set into the tensors that graphs compute with, unless it is there."""
        if not self._stage:
            self._stage = {name: torch.empty_like(tensor) for name, tensor in chosen.items()}
        if self._on_stage != weights:
            torch._foreach_copy_(list(self._stage.values()), [chosen[name] for name in self._stage])
            self._on_stage = weights
        return self._stage

    def _rounded_set(self, weights: WeightsId) -> Mapping[str, Tensor]:
        """The set in the base weights' type, made on first use."""
        exact = self._sets.get(weights, {})
        if not self.rounds or self._fast is not None:
            return exact
        if weights not in self._rounded:
            # Previews use the base weights only before the first version.
            self._rounded.pop(WeightsId(BASE), None)
            exact = exact or {name: parameter.data for name, parameter in self._trainable.items()}
            self._rounded[weights] = {name: tensor.to(self._narrow) for name, tensor in exact.items()}
        return self._rounded[weights]

    def _check_held(self, weights: WeightsId) -> None:
        if not self.holds(weights):
            held = ", ".join(str(held) for held in sorted(self._sets)) or "the base weights only"
            raise WeightsError(
                f"{weights} cannot be used, because this worker holds {held}; load it before work that needs it."
            )

    def _check_unwritten(self, weights: WeightsId, base: Mapping[str, nn.Parameter]) -> None:
        """Refuse if a parameter outside the set was written to; torch counts the writes to a tensor."""
        written = sorted(name for name, p in base.items() if p._version != self._written[name])
        if written:
            raise WeightsError(
                f"{weights} cannot be used, because {len(written)} base weights that it needs were trained in place "
                f"({_shown(written)}); publish version {weights.version} and load it."
            )

    def _check_names(self, weights: WeightsId, tensors: Mapping[str, Tensor]) -> None:
        wanted = {name: (tuple(p.shape), p.dtype) for name, p in self._trainable.items()}
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        problems = {
            "missing": sorted(wanted.keys() - found.keys()),
            "unexpected": sorted(found.keys() - wanted.keys()),
            "of another shape or type": sorted(n for n in wanted.keys() & found.keys() if wanted[n] != found[n]),
        }
        if any(problems.values()):
            listed = "; ".join(f"{len(names)} {what} ({_shown(names)})" for what, names in problems.items() if names)
            raise WeightsError(
                f"{weights} does not name the {len(wanted)} trainable weights of this model: {listed}; use weights of "
                "a run with the same model and the same train.lora settings."
            )


def own_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights that are still being trained, in the memory layout of a store, so that the bits are the same."""
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
