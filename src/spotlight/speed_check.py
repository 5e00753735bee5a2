"""Whether the workers of a run compile their model, and settings that contradict it."""

from spotlight.compute.models.catalogue import ModelFacts
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.config import RunConfig
from spotlight.control.explore.config import Precision
from spotlight.core.errors import ConfigError


def compiles(config: RunConfig, facts: ModelFacts) -> bool:
    """`model.compile`, with auto decided."""
    if config.cluster.pace is not None or config.deterministic or config.shards > 1:
        return False
    return config.model.compiles(is_real_family=facts.family in FAMILIES)


def check_speed(config: RunConfig, facts: ModelFacts) -> None:
    """Refuse a compiled model where its kernels would break a promise, and fp8 previews where they cannot run."""
    if config.model.compile is True and config.deterministic:
        raise ConfigError(
            "model.compile is true but deterministic is on, and a compiled model's bits depend on its batch sizes; set "
            "one of the two to false."
        )
    if config.model.compile is True and config.shards > 1:
        raise ConfigError(
            "model.compile is true but train.parallel is sharded, and workers compile whole models only; set "
            "model.compile to auto or false."
        )
    if not config.explores or config.explore.precision is not Precision.FP8:
        return
    if config.train.lora is None:
        raise ConfigError(
            "explore.precision is fp8 but all weights are trained, and only frozen weights have a copy in fp8; set "
            "train.lora, or explore.precision to exact."
        )
    if not compiles(config, facts):
        raise ConfigError(
            "explore.precision is fp8 but the model is not compiled, and only compiled forwards gain from it; set "
            "model.compile to true, or explore.precision to exact."
        )
