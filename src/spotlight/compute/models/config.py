"""Section `model` of a recipe, and the names of devices; free of torch."""

from pydantic import field_validator

from spotlight.core.errors import ConfigError
from spotlight.core.section import Section

CPU, CUDA = "cpu", "cuda"
LIKE_CPU = ("cp", "host", "x86", "arm")
"""Beginnings of wrong device names that mean the CPU; any other wrong name means a GPU."""


def device_of(name: str, setting: str = "the device") -> tuple[str, int | None]:
    """Return kind and number of `cpu`, `cuda` or `cuda:N`; the ConfigError for any other name names `setting`."""
    kind, colon, number = name.partition(":")
    if name == CPU or (kind == CUDA and (not colon or (number.isascii() and number.isdigit()))):
        return kind, int(number) if number else None
    meant = CPU if kind.lower().startswith(LIKE_CPU) else CUDA
    raise ConfigError(f"{setting} is '{name}', but devices are named cpu, cuda or cuda:N; did you mean '{meant}'?")


class ModelConfig(Section):
    """The weights to post-train, and their device."""

    name: str = "words"
    """A shipped family (words, words-large, scenes), a weights file, or the result of a run: RUN, RUN/weights/FILE or
    RUN/checkpoints/STEP. A run copies any but a shipped family into its folder when it starts."""
    device: str = CPU
    """cpu, cuda or cuda:N. With cuda every slot has its own device (see cluster.share_devices); cuda:N puts all slots
    on that device."""
    tf32: bool = False
    """On CUDA, let fp32 matmuls round their inputs to TF32: much faster; replayed log-probs then agree to 1e-5."""
    compile: bool = False
    """Compile the transformer: a minute at the start, then a batch of a given size runs up to 1.7 times faster. For
    programs of one process (learning benchmarks, co-simulations); a run refuses it, because workers do not compile."""

    @field_validator("device")
    @classmethod
    def _device_exists(cls, device: str) -> str:
        device_of(device, "model.device")
        return device
