"""What the memory of a run's processes depends on, as one value; free of torch."""

from dataclasses import dataclass

from spotlight.compute.memory.activations import FLOAT, Activations, Tokens
from spotlight.compute.models.catalogue import ModelFacts
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import AUTO, AlgorithmConfig, TrainConfig
from spotlight.core.types import Size

LATENTS_HELD = 12
"""Latents in float32 that a training row holds beside the model's activations: clean, noised, noise, velocities of the
weight sets, and the terms of the loss."""


@dataclass(frozen=True, kw_only=True)
class RolloutLoad:
    """The run's samples, as far as memory depends on them."""

    size: Size
    text_tokens: int
    """Width of the longest prompt's padded text."""
    guidance: float = 1.0
    window: int = 0
    """Steps whose latents and means a sample in flight holds."""
    previews: bool = False
    fp8: bool = False
    """Whether previews compute in fp8, with a second copy of the base weights."""
    overlaps: bool = False
    """Whether images are decoded while the rank trains: it rolls out between the parts of an update."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its precision, the weights that are trained, and the samples."""

    facts: ModelFacts
    compute: int
    """Bytes of a number of the transformer's compute type."""
    rank: int | None
    """Rank of the adapters; None trains all weights."""
    copies: int
    """Weight sets of the trainer beside theta."""
    rollouts: RolloutLoad
    searches: bool = False
    """Whether the rows per training forward are searched, which sets gradients aside."""
    on_gpu: bool = True
    compiled: bool = False
    """Whether rollouts run as graphs, which compute with a copy of the set in use."""

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        model: ModelConfig,
        train: TrainConfig,
        algorithm: AlgorithmConfig,
        rollouts: RolloutLoad,
        takes_stale: bool,
    ) -> "Workload":
        return cls(
            facts=facts,
            compute=facts.number_bytes(model),
            rank=None if train.lora is None else train.lora.rank,
            copies=1 + algorithm.weight_sets(takes_stale, model.is_on_gpu),
            rollouts=rollouts,
            searches=train.micro_batch == AUTO,
            on_gpu=model.is_on_gpu,
            compiled=model.is_on_gpu and model.compiles(facts.real is not None),
        )

    @property
    def tokens(self) -> Tokens:
        """Tokens of one row."""
        return Tokens(image=self.facts.geometry.tokens(self.rollouts.size), text=self.rollouts.text_tokens)

    @property
    def blocks(self) -> int:
        return self.facts.shape.all_blocks

    @property
    def activations(self) -> Activations:
        return Activations(shape=self.facts.shape, compute=self.compute, rank=self.rank)

    @property
    def base_bytes(self) -> int:
        """The transformer's weights in the compute type, and its table of positions in float32."""
        positions = self.facts.shape.positions
        return self.compute * (self.facts.parameters - positions) + FLOAT * positions

    @property
    def trained_bytes(self) -> int:
        """One copy of the trained weights, which are always float32."""
        facts = self.facts
        return FLOAT * (
            facts.parameters - facts.shape.positions if self.rank is None else self.rank * facts.matrix_edges
        )

    @property
    def fp8_bytes(self) -> int:
        """The base weights in fp8."""
        return self.facts.parameters if self.rollouts.fp8 else 0

    @property
    def vae_bytes(self) -> int:
        return FLOAT * self.facts.vae_parameters

    @property
    def latent_bytes(self) -> int:
        """Latents of one sample."""
        return FLOAT * self.tokens.image * self.facts.geometry.token_channels

    @property
    def decoding_bytes(self) -> int:
        """Peak of the decoding of one image; a batch is decoded one by one."""
        decoder = self.facts.decoder
        held = decoder.maps + (decoder.workspace if self.on_gpu else 0)
        return FLOAT * held * self.rollouts.size.height * self.rollouts.size.width

    def training_bytes(self, rows: int, recomputed: int) -> int:
        """Peak of the activations of a training forward and backward."""
        halves = 2 if self._is_guided_twice else 1
        joined = halves if self._joins_halves else 1
        found = self.activations.training_bytes(self.tokens, rows * joined, recomputed, halves // joined)
        return found + LATENTS_HELD * rows * self.latent_bytes

    def forward_bytes(self, rows: int) -> int:
        """Peak of a denoising step of `rows` samples, with the tensors of the samples in flight."""
        joined = 2 if self._joins_halves else 1
        held = (2 * self.rollouts.window + 3) * rows * self.latent_bytes
        return round(rows * joined * self.activations.forward_bytes(self.tokens)) + held

    @property
    def _is_guided_twice(self) -> bool:
        return self.rollouts.guidance != 1.0 and not self.facts.embeds_guidance

    @property
    def _joins_halves(self) -> bool:
        """Whether both halves of a guided velocity are one forward."""
        real = self.facts.real
        return self._is_guided_twice and real is not None and real.batches_guidance
