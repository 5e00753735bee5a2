"""Section `model` of a recipe, and the names of devices; free of torch."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from spotlight.core.errors import ConfigError
from spotlight.core.section import Section

CPU, CUDA, AUTO = "cpu", "cuda", "auto"
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of GPU drivers; torch calls both kinds cuda."""
FLOAT32 = "float32"
LIKE_CPU = ("cp", "host", "x86", "arm")
"""Beginnings of wrong device names that mean the CPU; any other wrong name means a GPU."""


def found_device(name: str) -> str:
    """The device that `auto` stands for here; any other name is returned as it is."""
    if name != AUTO:
        return name
    return CUDA if any(Path(driver).exists() for driver in GPU_DRIVERS) else CPU


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
    """A shipped family (words, words-large, scenes), a weights file, the result of a run (RUN, RUN/weights/FILE,
    RUN/checkpoints/STEP), a folder in diffusers layout, a hub id (owner/name), random-tiny:FAMILY or random:FAMILY
    (docs/models.md). A run copies weights files and tiny random models into its folder when it starts."""
    device: str = CPU
    """cpu, cuda, cuda:N or auto. With cuda every slot has its own device (see cluster.share_devices); cuda:N puts all
    slots on that device. auto is cuda on a machine with a GPU and cpu on any other; a run stores which."""
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Compute type of the transformer. None: that of the family on a GPU (bfloat16), float32 on a CPU and for the
    shipped families. Adapters, latents and log-probs are always float32."""
    max_text_tokens: int | None = Field(default=None, ge=8)
    """Longest prompt in tokens, for families that pad every prompt to it (sd3, flux): a smaller number is faster. None:
    the family's own limit. Longer prompts are refused, never cut off."""
    embeddings_gb: float = Field(default=8.0, gt=0)
    """Disk space for encoded prompts (RUN/embeddings); prompts that are not needed soon are removed beyond it."""
    offload_vae: bool | Literal["auto"] = "auto"
    """Keep the VAE in host memory between two decodings; each then uploads its weights. auto does so on a GPU on which
    the process would not fit otherwise."""
    tf32: bool = False
    """On CUDA, let fp32 matmuls round their inputs to TF32: much faster; replayed log-probs then agree to 1e-5."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the transformer's blocks, for faster rollouts and training on a GPU. The first start takes 15 seconds
    more for rollouts and half a minute for training, each new batch size 4. auto does so for real families on a GPU."""
    attention: Literal["auto", "masked", "flash", "cudnn"] = "auto"
    """Attention kernel of a compiled model. auto measures at the start of a run; all workers use the same."""

    def compiles(self, is_real_family: bool) -> bool:
        """Whether workers compile the model, if nothing else speaks against it."""
        return self.is_on_gpu and is_real_family if self.compile == AUTO else bool(self.compile)

    @property
    def is_on_gpu(self) -> bool:
        return device_of(self.device)[0] == CUDA

    @field_validator("device")
    @classmethod
    def _device_exists(cls, device: str) -> str:
        if device != AUTO:
            device_of(device, "model.device")
        return device
