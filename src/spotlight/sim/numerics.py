"""What simulated machines compute: hashes (storms), draws from a statistical model, or a tiny model's real numbers.

The machines ask for latents, verdicts and tensors of samples by identity and weights, and tell of every optimizer step;
when they ask, and which of them, changes nothing. A weights digest names everything that was ever trained into them.
"""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from spotlight.core import messages as m
from spotlight.core.types import Sample
from spotlight.core.work import Request, Work
from spotlight.sim import fakes

Issued: TypeAlias = Callable[[int, Work], list[Request]]
"""Requests of an iteration and kind, in the order of issue."""


class TrainedState(msgspec.Struct, frozen=True):
    """All that a checkpoint of a simulated trainer holds: names of weights."""

    steps: int = 0
    theta: str = "base"
    behaviour: str = "base"
    average: str = "base"
    before: str = "base"
    """`behaviour` of the version before."""

    def drew(self, sample: Sample, iteration: int) -> str:
        """The weights of a sample that the iteration trains on."""
        return self.behaviour if sample.version == iteration else self.before


class Numerics(Protocol):
    """Everything that is a number in a simulated run."""

    counts_bits: bool
    """Whether weights have another name when the parts of a step came in another order: their last bits differ."""

    def attend(self, issued: Issued) -> None:
        """A run begins; `issued` tells what else its machines will ask for."""

    def first_latent(self, sample: Sample) -> str: ...

    def next_latent(self, latent: str, step: int, weights_digest: str) -> str: ...

    def latent_at(self, sample: Sample, step: int, weights_digest: str) -> str:
        """What the latent must be after so many steps, whoever takes them."""

    def tensors(self, request: Request, weights_digest: str, salt: str) -> bytes:
        """What a finished sample is kept as; `salt` is what its last bits depend on outside of deterministic mode."""

    def score(self, request: Request, weights_digest: str) -> m.Score: ...

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        """One optimizer step was taken; its figures."""


class HashNumerics:
    """Stand-ins that differ where anything differs that they depend on."""

    counts_bits = True

    def attend(self, issued: Issued) -> None:
        pass

    def first_latent(self, sample: Sample) -> str:
        return fakes.first_latent(sample)

    def next_latent(self, latent: str, step: int, weights_digest: str) -> str:
        return fakes.next_latent(latent, step, weights_digest)

    def latent_at(self, sample: Sample, step: int, weights_digest: str) -> str:
        return fakes.latent_at(sample, step, weights_digest)

    def tensors(self, request: Request, weights_digest: str, salt: str) -> bytes:
        sample = request.sample
        return f"{fakes.latent_at(sample, sample.sampling.steps, weights_digest)}{salt}".encode()

    def score(self, request: Request, weights_digest: str) -> m.Score:
        reward = fakes.reward_of(request.sample, weights_digest)
        return m.Score(reward, {"exact": float(reward > 0.5)}, fakes.SCORER)

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        return {"loss": 0.0}
