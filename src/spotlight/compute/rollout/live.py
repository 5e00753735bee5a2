"""One row of the engine: a sample in mid-denoising on the model's device, and its export as flight and payload."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.rollout.flight import Flight, Payload, window_steps_taken
from spotlight.compute.rollout.row_book import is_commit_due
from spotlight.compute.rollout.step import Drawn, RowPlace
from spotlight.core.types import Size
from spotlight.core.work import Request, WeightsId


@dataclass(frozen=True)
class Bucket:
    """Properties that the rows of one forward share. Steps, windows and samplers may differ between them."""

    weights: WeightsId
    is_exact: bool
    size: Size
    guidance: float
    text_width: int
    """Width of the row's padded conditioning; padding it to a longer neighbour would change its last bits."""


@dataclass(kw_only=True)
class LiveRow:
    """A sample in flight; latents and recorded window steps stay on the device until a flight or payload is made."""

    request: Request
    attempt: int
    commit_every: int
    run_seed: int
    sigmas: list[float]
    cond: ConditionBatch
    """Conditioning of this one row."""
    x_SC: Tensor
    is_exact: bool = True
    """Whether it is computed with the unrounded weights."""
    velocity_SC: Tensor | None = None
    """Velocity of the previous step, where the sampler needs it."""
    step: int = 0
    began: int = 0
    """Step at which this attempt started."""
    committed: int = 0
    """Step of the newest commit; another worker can continue from it."""
    recorded_at: int = 0
    """Step of the newest commit with recorded tensors; later commits omit the tensors up to it."""
    recorded_seal: str = ""
    """Seal of that commit."""
    path: list[Tensor] = field(default_factory=list)
    log_prob: list[Tensor] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)

    def resume(self, flight: Flight) -> None:
        """Copy the state of a flight; its tensors alias the bytes of a message."""
        device = self.x_SC.device
        self.step = self.began = self.committed = flight.step
        self.recorded_at, self.recorded_seal = flight.recorded_at, flight.recorded_seal
        self.x_SC = flight.x_SC.clone().to(device)
        self.velocity_SC = None if flight.velocity_SC is None else flight.velocity_SC.clone().to(device)
        self.path = [latents.clone().to(device) for latents in flight.path_RSC]
        self.log_prob = [log_prob.clone().to(device) for log_prob in flight.log_prob_R]
        self.mean = [mean.clone().to(device) for mean in flight.mean_RSC]

    @property
    def bucket(self) -> Bucket:
        sampling = self.request.sample.sampling
        return Bucket(
            self.request.weights,
            self.is_exact,
            sampling.size,
            sampling.guidance,
            self.cond.mask.shape[1],
        )

    @property
    def place(self) -> RowPlace:
        return RowPlace(self.request.sample, self.step, self.sigmas, self.run_seed, self.velocity_SC)

    @property
    def is_last_step(self) -> bool:
        return self.step + 1 == self.request.sample.sampling.steps

    @property
    def is_finished(self) -> bool:
        return self.step == self.request.sample.sampling.steps

    @property
    def is_commit_due(self) -> bool:
        return is_commit_due(self.commit_every, self.step, self.committed)

    def record(self, entry: int, drawn: Drawn) -> None:
        """Record entry `entry` of a stochastic step; rows are copied, so that no batch is kept alive."""
        if not self.path:
            self.path.append(drawn.before_RSC[entry].clone())
        self.path.append(drawn.after_RSC[entry].clone())
        self.log_prob.append(drawn.log_prob_R[entry].clone())
        self.mean.append(drawn.mean_RSC[entry].clone())

    def flight(self, weights_digest: str, is_whole: bool) -> Flight:
        """Return the current flight, whole or without the tensors of earlier commits."""
        since = 0 if is_whole else self.recorded_at
        committed = window_steps_taken(self.request.sample.sampling, since)
        return Flight(
            request=self.request,
            attempt=self.attempt,
            step=self.step,
            since=since,
            base=self.recorded_seal if since else "",
            weights_digest=weights_digest,
            x_SC=self.x_SC,
            velocity_SC=self.velocity_SC,
            path_RSC=self.path[committed + 1 :] if committed else self.path,
            log_prob_R=self.log_prob[committed:],
            mean_RSC=self.mean[committed:],
        )

    def note_commit(self, seal: str) -> None:
        """Record that a commit of the current state was made, with this seal."""
        if len(self.mean) > window_steps_taken(self.request.sample.sampling, self.recorded_at):
            self.recorded_at, self.recorded_seal = self.step, seal
        self.committed = self.step

    def payload(self, weights_digest: str) -> Payload:
        return Payload(
            request=self.request,
            weights_digest=weights_digest,
            x0_SC=self.x_SC.cpu(),
            path_KSC=self._stacked(self.path),
            log_prob_K=torch.tensor(self.log_prob, dtype=torch.float32),
            mean_KSC=self._stacked(self.mean),
        )

    def _stacked(self, latents: list[Tensor]) -> Tensor:
        return torch.stack(latents).cpu() if latents else torch.zeros(0, *self.x_SC.shape)
