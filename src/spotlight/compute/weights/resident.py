"""Published weights beside a worker's model: which sets it holds, and computing with one of them.

Invariant: inside `use(w)` the module computes with exactly the bytes that were published as w, and outside with its
own parameters (tests/unit/test_weight_store.py): a set names all trainable parameters and no other, belongs to the
same base weights, and its digest is read back from the module when it is loaded.

Previews may use a set that is rounded to the type of the base weights: beside weights in bf16, adapters in fp32 cost
a quarter to a third more than rounded ones, and a preview only ranks. Where all weights are of one type nothing is
rounded.

On a CPU the parameters are the pages of the node's store, without a copy; nothing may write to them, so `use` turns
gradients off. On another device a set is copied there once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.store import MappedWeights
from spotlight.compute.weights.upload import upload
from spotlight.core.errors import WeightsError
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

BASE = Version(0)
SHOWN_NAMES = 4


class Resident:
    """The sets that one module can compute with; what is trainable when this is built is what sets must name."""

    def __init__(self, module: nn.Module, base_digest: str, capacity: int = 2) -> None:
        self.base_digest = base_digest
        self.capacity = capacity
        """Sets held at a time: the current one and the one before it."""
        self._trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self._frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        # Adapters sit beside the large weights; the few that a model keeps in a wider type do not decide.
        types = {parameter.dtype for parameter in (self._frozen or self._trainable).values()}
        self._narrow = min(types, key=lambda dtype: dtype.itemsize)
        self.rounds = any(p.dtype.itemsize > self._narrow.itemsize for p in self._trainable.values())
        """Whether a rounded set differs from the exact one: the base weights are narrower than what is trained."""
        self._written = {name: p._version for name, p in module.named_parameters()}
        self._sets: dict[WeightsId, Mapping[str, Tensor]] = {}
        self._digests: dict[WeightsId, str] = {}
        self._rounded: dict[WeightsId, Mapping[str, Tensor]] = {}
        self.in_use: WeightsId | None = None
        """The set that the module computes with now, inside `use`."""
        self.is_exact = True
        """Whether it computes with the very bytes of that set."""

    @property
    def device(self) -> torch.device:
        return next(iter({**self._trainable, **self._frozen}.values())).device

    def load(self, stored: MappedWeights) -> str:
        """Hold a set; returns the digest that was read back from the module."""
        if stored.base_digest != self.base_digest:
            raise WeightsError(
                f"{stored.weights} belongs to base weights {stored.base_digest} but this worker's model is "
                f"{self.base_digest}, so the rest of it would be another; start the worker from the run's base weights."
            )
        self._check_names(stored.weights, stored.tensors)
        return self._hold(stored.weights, lambda: self._on_device(stored.tensors), stored.fingerprint)

    def adopt(self, weights: WeightsId, tensors: Mapping[str, Tensor], expected_digest: str) -> str:
        """Hold a set that is on this module's device already, from now on its own; checked like one from the store."""
        self._check_names(weights, tensors)
        return self._hold(weights, lambda: tensors, expected_digest)

    def tensors(self, weights: WeightsId) -> Mapping[str, Tensor]:
        """A loaded set, to be copied by a neighbour."""
        return self._sets[weights]

    def _hold(self, weights: WeightsId, bring: Callable[[], Mapping[str, Tensor]], expected_digest: str) -> str:
        if weights not in self._sets and len(self._sets) >= self.capacity:
            held = ", ".join(str(held) for held in sorted(self._sets))
            raise WeightsError(
                f"{weights} was to be loaded beside {held}, but a worker holds at most {self.capacity} sets; drop one "
                "that is no longer asked for."
            )
        self._sets[weights] = bring()
        self._rounded.pop(weights, None)
        found = self.held_digest(weights)
        if found != expected_digest:
            del self._sets[weights]
            raise WeightsError(
                f"{weights} was published with digest {expected_digest} but the model holds {found} after loading it, "
                "so it was altered on the way; fetch it again."
            )
        self._digests[weights] = found
        return found

    def _on_device(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """In the order of the module's own names."""
        return upload({name: tensors[name] for name in self._trainable}, self.device)

    def drop(self, weights: WeightsId) -> None:
        """Let go of a set; nothing happens if it is not held."""
        self._sets.pop(weights, None)
        self._rounded.pop(weights, None)
        self._digests.pop(weights, None)

    def holds(self, weights: WeightsId) -> bool:
        return weights in self._sets or weights.version == BASE

    def held(self) -> tuple[tuple[WeightsId, str], ...]:
        """The loaded sets with their digests; the base weights are always there and not named."""
        return tuple((weights, self._digests[weights]) for weights in sorted(self._sets))

    def digest_of(self, weights: WeightsId) -> str:
        """The digest that was read back when the set was loaded; the base weights have the run's base digest."""
        self._check_held(weights)
        return self._digests.get(weights, self.base_digest)

    def held_digest(self, weights: WeightsId) -> str:
        """Computed now, from what the module really holds while it uses the set."""
        with self.use(weights):
            if weights not in self._sets:
                return self.base_digest
            return fingerprint({name: p.detach() for name, p in self._trainable.items()})

    @contextmanager
    def use(self, weights: WeightsId, is_exact: bool = True) -> Iterator[None]:
        """The module computes with that set inside the block, without gradients; if not exact, with it rounded."""
        self._check_held(weights)
        chosen = self._sets.get(weights, {})
        self._check_unwritten(weights, self._frozen if chosen else self._frozen | self._trainable)
        if not is_exact:
            chosen = self._rounded_set(weights)
        own = {name: self._trainable[name].data for name in chosen}
        before = self.in_use, self.is_exact
        try:
            for name, tensor in chosen.items():
                self._trainable[name].data = tensor
            self.in_use, self.is_exact = weights, is_exact
            with torch.no_grad():
                yield
        finally:
            self.in_use, self.is_exact = before
            for name, tensor in own.items():
                self._trainable[name].data = tensor

    def _rounded_set(self, weights: WeightsId) -> Mapping[str, Tensor]:
        """Of the base weights' type, made when it is first asked for."""
        exact = self._sets.get(weights, {})
        if not self.rounds:
            return exact
        if weights not in self._rounded:
            # The base weights are previewed with before the first version only.
            self._rounded.pop(WeightsId(BASE), None)
            exact = exact or {name: parameter.data for name, parameter in self._trainable.items()}
            self._rounded[weights] = {name: tensor.to(self._narrow) for name, tensor in exact.items()}
        return self._rounded[weights]

    def _check_held(self, weights: WeightsId) -> None:
        if not self.holds(weights):
            held = ", ".join(str(held) for held in sorted(self._sets)) or "the base weights only"
            raise WeightsError(
                f"{weights} was to be used but this worker holds {held}; load it before work that needs it."
            )

    def _check_unwritten(self, weights: WeightsId, base: Mapping[str, nn.Parameter]) -> None:
        """What a set does not name must still be the base weights: torch counts the writes to a tensor."""
        written = sorted(name for name, p in base.items() if p._version != self._written[name])
        if written:
            raise WeightsError(
                f"{weights} was to be used, but {len(written)} of the base weights it relies on were trained in place "
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
            told = "; ".join(f"{len(names)} {what} ({_shown(names)})" for what, names in problems.items() if names)
            raise WeightsError(
                f"{weights} does not name the {len(wanted)} trainable weights of this model: {told}; use weights of a "
                "run with the same model and the same train.lora settings."
            )


def own_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of weights that go on being trained: laid out as those from a store are, so that it computes the same bits."""
    return {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
