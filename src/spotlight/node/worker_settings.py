"""Settings that all workers of a run share; free of torch, because the controller writes them."""

from spotlight.compute.memory.memory_load import RolloutLoad
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import AlgorithmConfig, TrainConfig
from spotlight.control.explore.config import Precision
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.section import Section
from spotlight.core.types import Size


class PaceSettings(Section):
    """Durations of a paced run, and the training cost per image."""

    profile: str
    """Name of a shipped profile, or a file."""
    speed: float
    """Divisor of the profile's seconds."""
    timesteps: int
    forwards: int
    passes: int
    over: BatchesOver = BatchesOver.PAIRS
    """See `compute.profiling.pace.TrainingCost`."""
    precision: Precision = Precision.EXACT
    """Arithmetic of previews."""
    spot_speed: float = 1.0
    """Speed of a spot slot relative to the profile."""


class RowsSettings(Section):
    """Properties of the run's rollouts, for a worker that measures the best row count of its device."""

    most: int
    """Upper bound on the rows: a slot's share of the samples of an iteration."""
    height: int
    width: int
    guidance: float
    window: int
    """Steps of the SDE window."""
    prompt: str
    """Longest prompt of the run."""


class MemorySettings(Section):
    """Properties of the run's rows that a worker's memory depends on, beside model, training and algorithm."""

    height: int
    width: int
    text_tokens: int
    """Width of the longest prompt's padded text."""
    guidance: float
    window: int
    """Steps of the SDE window."""
    previews: bool
    fp8: bool = False
    overlaps: bool = False
    """Whether a rank that trains may decode images at the same time."""

    shards: int = 1
    """Training ranks that share the weights."""

    @classmethod
    def of(cls, rollouts: RolloutLoad, shards: int) -> "MemorySettings":
        return cls(
            shards=shards,
            height=rollouts.size.height,
            width=rollouts.size.width,
            text_tokens=rollouts.text_tokens,
            guidance=rollouts.guidance,
            window=rollouts.window,
            previews=rollouts.previews,
            fp8=rollouts.fp8,
            overlaps=rollouts.overlaps,
        )

    @property
    def rollouts(self) -> RolloutLoad:
        return RolloutLoad(
            size=Size(self.height, self.width),
            text_tokens=self.text_tokens,
            guidance=self.guidance,
            window=self.window,
            previews=self.previews,
            fp8=self.fp8,
            overlaps=self.overlaps,
        )


class WorkerSettings(Section):
    """Written as JSON into a worker's launch."""

    run_seed: int
    run_folder: str
    deterministic: bool
    """Every forward has the same row count, so a sample's bits depend only on its identity and weights."""
    model: ModelConfig
    """With `compile` decided: no longer auto."""
    train: TrainConfig
    algorithm: AlgorithmConfig
    takes_stale: bool = False
    """Whether samples of the previous version may be trained on."""
    fp8_previews: bool = False
    """Whether previews compute in fp8."""
    pace: PaceSettings | None = None
    """None in a run that computes."""
    rows: RowsSettings | None = None
    """None if the row count is fixed."""
    memory: MemorySettings | None = None
    """None in a run that computes nothing."""
