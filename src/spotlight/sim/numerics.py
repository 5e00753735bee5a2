"""The numbers of simulated machines: hashes (storms), draws from a statistical model, or a tiny model's real numbers.

Machines request latents, verdicts and tensors by sample identity and weights, and report every optimizer step. The
machine and time of a request change nothing. A weights digest covers everything that was trained into the weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from spotlight.compute.rewards.combination import Verdict, combined
from spotlight.compute.rewards.config import Term
from spotlight.control.explore.config import Precision
from spotlight.core import messages as m
from spotlight.core.types import Sample
from spotlight.core.work import Request, Work
from spotlight.sim import fakes

Issued: TypeAlias = Callable[[int, Work], list[Request]]
"""Requests of an iteration and kind, in the order of issue."""


class TrainedState(msgspec.Struct, frozen=True):
    """Content of a simulated trainer's checkpoint: weights digests."""

    steps: int = 0
    theta: str = "base"
    behaviour: str = "base"
    average: str = "base"
    before: str = "base"
    """`behaviour` of the previous version."""

    def drew(self, sample: Sample, iteration: int) -> str:
        """Digest of the weights that drew a sample of the iteration."""
        return self.behaviour if sample.version == iteration else self.before


class Numerics(Protocol):
    """Source of all numbers in a simulated run."""

    counts_bits: bool
    """Whether digests depend on the last bits, and so on the order of a step's parts."""

    def begin_run(self, issued: Issued, previews: Precision) -> None:
        """Start a run; `issued` gives the other requests of an iteration, `previews` is their arithmetic."""

    def first_latent(self, sample: Sample) -> str: ...

    def next_latent(self, latent: str, step: int, weights_digest: str) -> str: ...

    def latent_at(self, sample: Sample, step: int, weights_digest: str) -> str:
        """The latent after `step` steps, on any worker."""

    def tensors(self, request: Request, weights_digest: str, salt: str) -> bytes:
        """Content of a finished sample; `salt` stands for the last bits, which vary outside of deterministic mode."""

    def score(self, request: Request, weights_digest: str) -> m.Score: ...

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        """Record one optimizer step; return its figures."""


class HashNumerics:
    """Hashes of everything that a number depends on."""

    counts_bits = True

    def __init__(self, rewards: Sequence[Term] = ()) -> None:
        self._rewards = [term for term in rewards if term.key]

    def begin_run(self, issued: Issued, previews: Precision) -> None:
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
        if self._rewards:
            parts = [
                Verdict(m.Score(fakes.reward_of(request.sample, f"{weights_digest} {term.key}"), {}, fakes.SCORER))
                for term in self._rewards
            ]
            return combined(self._rewards, parts).score
        reward = fakes.reward_of(request.sample, weights_digest)
        return m.Score(reward, {"exact": float(reward > 0.5)}, fakes.SCORER)

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        return {"loss": 0.0}
