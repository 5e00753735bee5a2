"""What a run tells all its workers; free of torch, because the controller writes it."""

from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import AlgorithmConfig, TrainConfig
from spotlight.control.pipeline.tsp import BatchesOver
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


class RowsSettings(Section):
    """What a worker needs to know of the rollouts to measure how many rows suit its device."""

    most: int
    """A slot's share of the samples of an iteration: more rows are of no use."""
    height: int
    width: int
    guidance: float
    window: int
    """Steps of the SDE window."""
    prompt: str
    """The longest one of the run."""


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
    rows: RowsSettings | None = None
    """None where the rows are fixed."""
