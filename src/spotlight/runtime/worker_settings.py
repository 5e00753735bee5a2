"""What a run tells all its workers; free of torch, because the controller writes it."""

from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import AlgorithmConfig, BatchesOver, TrainConfig
from spotlight.core.section import Section


class PaceSettings(Section):
    """How long things take in a paced run, and what training on one image costs there."""

    profile: str
    """A shipped profile or a file."""
    speed: float
    """The profile's seconds are divided by it."""
    timesteps: int
    forwards: int
    passes: int
    over: BatchesOver = BatchesOver.PAIRS
    """As of `runtime.sim.profiled.TrainingCost`."""
    spot_speed: float = 1.0
    """Of a spot slot, where the profile's is 1."""


class WorkerSettings(Section):
    """As JSON inside a worker's launch."""

    run_seed: int
    run_folder: str
    deterministic: bool
    """Every forward has the same row count, so that a sample's bits depend on its identity and weights alone."""
    model: ModelConfig
    train: TrainConfig
    algorithm: AlgorithmConfig
    takes_stale: bool = False
    """Whether samples of the version before may be trained on."""
    pace: PaceSettings | None = None
    """None computes."""
