"""Makes a worker's model fast, with the attention kernel that all workers of the run use (`compute/fast`)."""

from pathlib import Path

from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import CanBeFast, FastModel, accelerate, one_text_width
from spotlight.compute.fast.kernel_choice import fastest_kernel, usable_kernels
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.config import AUTO
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.core.types import Size
from spotlight.node.launch import WorkerLaunch
from spotlight.node.measured import MeasuredFigures
from spotlight.node.worker_settings import WorkerSettings

EAGER = ""
"""`Hello.kernels` of a worker that runs its model as diffusers does."""
KERNELS = "kernels"


def accelerated(adapter: Adapter, launch: WorkerLaunch, settings: WorkerSettings) -> FastModel:
    """Make the adapter's model fast in place; its trained parameters must be selected."""
    assert isinstance(adapter, CanBeFast)
    kernel = _kernel(adapter, launch, settings)
    _pad_to_one_width(adapter, settings)
    adapter.fast = accelerate(adapter.transformer, kernel, settings.fp8_previews)
    return adapter.fast


def _pad_to_one_width(adapter: Adapter, settings: WorkerSettings) -> None:
    family, memory = FAMILIES.get(adapter.family), settings.memory
    if family is None or not family.text_buckets or memory is None or not isinstance(adapter, PipelineAdapter):
        return
    tokens, _ = adapter.latent_shape(Size(memory.height, memory.width))
    adapter.least_text_width = one_text_width(memory.text_tokens, family.text_buckets, tokens)


def kernels_of(fast: FastModel | None) -> str:
    return EAGER if fast is None else f"compiled, {fast.kernel.value} attention"


def _kernel(adapter: Adapter, launch: WorkerLaunch, settings: WorkerSettings) -> AttentionKernel:
    """The setting, or the kernel that the first worker on this machine measured as the fastest."""
    if settings.model.attention != AUTO:
        return AttentionKernel(settings.model.attention)
    weight = next(adapter.transformer.parameters())
    family = FAMILIES.get(adapter.family)
    usable = usable_kernels(weight.device, weight.dtype, family.excluded_kernels if family is not None else ())
    memory = settings.memory
    if len(usable) == 1 or memory is None:
        return usable[0]
    tokens, _ = adapter.latent_shape(Size(memory.height, memory.width))
    text = memory.text_tokens
    padding = text // 2 if family is not None and family.text_buckets else 0

    def measure() -> str:
        rows = launch.rows or 1
        return fastest_kernel(usable, rows, tokens + text, padding, adapter.transformer).value

    # One file for all devices of the machine: ranks and rollout workers must agree.
    measured = MeasuredFigures(Path(launch.shared), KERNELS, weight.device.type, str)
    return AttentionKernel(measured.of(f"{tokens + text} tokens", measure))
