"""Settings of all simulated nodes of a run."""

from dataclasses import dataclass, field
from math import inf

from spotlight.compute.models.catalogue import facts_of
from spotlight.config import RunConfig
from spotlight.control.elastic.config import ElasticConfig


@dataclass(frozen=True, kw_only=True)
class SimMachineSettings:
    """What nodes and workers are started with; see NodeSettings and WorkerSettings."""

    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    heads: int = 1
    token_pixels: int = 1
    silence_s: float = inf
    start_s: float = inf
    drain_s: float = 20.0
    takes_stale: bool = False
    """Whether trainers take samples of the previous version."""
    copies_sets: bool = True
    """Whether published weights are copied to devices, as on GPUs; otherwise the store's pages are the weights."""

    @classmethod
    def of(cls, config: RunConfig, copies_sets: bool = True) -> "SimMachineSettings":
        """Settings of the run, and figures of its model."""
        cluster, facts = config.cluster, facts_of(config.model.name)
        return cls(
            elastic=cluster.elastic,
            heads=facts.heads,
            token_pixels=facts.token_pixels,
            silence_s=cluster.silence_s,
            start_s=cluster.start_s,
            drain_s=cluster.drain_s,
            takes_stale=config.pipeline.asynchrony,
            copies_sets=copies_sets,
        )
