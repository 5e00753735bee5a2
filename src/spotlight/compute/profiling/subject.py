"""Models to profile, as a worker and a trainer hold them.

A tiny family is profiled in its default training, with all its weights; Qwen-Image with adapters of rank 64, in bf16 on
a GPU. Its weights may be random, because no duration depends on them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from spotlight.compute.data.worlds import World
from spotlight.compute.fast.fast_model import CanBeFast, FastModel, accelerate
from spotlight.compute.fast.kernel_choice import fastest_kernel, usable_kernels
from spotlight.compute.models import families
from spotlight.compute.models.adapter import Adapter, ConditionBatch, Conditioning
from spotlight.compute.train.config import AlgorithmConfig, LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident
from spotlight.control.profiles import Operation
from spotlight.core.types import Size, Version
from spotlight.core.work import WeightsId

QWEN_IMAGE = "qwen-image"
RUN_SEED = 0
TEXT_TOKENS = 64
LORA = LoraConfig(rank=64, alpha=128.0)
WIDE_TOKENS = 4096
"""Pictures with more tokens are measured at fewer batch sizes: small batches are already bound by arithmetic."""

Batches = Mapping[Operation, tuple[int, ...]]


@dataclass(frozen=True)
class QwenImageShape:
    """Arguments of diffusers' classes that differ from their defaults, which are Qwen-Image's."""

    transformer: Mapping[str, Any] = field(default_factory=dict)
    vae: Mapping[str, Any] = field(default_factory=dict)


class ProfiledModel:
    """A model with its trainer; both share weights, as in a reserved worker."""

    def __init__(
        self, model: str, adapter: Adapter, size: Size, text: Conditioning, digest: str, train: TrainConfig,
        batches: Batches, world: World | None = None, algorithm: AlgorithmConfig | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.adapter = adapter
        self.size = size
        self.base_digest = digest
        self.batches = batches
        self.world = world
        """The family's prompts and reward; None for a model without them."""
        self._text = text
        self.trainer = Trainer(adapter, train, algorithm or NftConfig(), RUN_SEED)
        self.resident = Resident(adapter.transformer, digest)
        self.fast: FastModel | None = None

    @property
    def kernels(self) -> str:
        """How its forwards run, in words."""
        return "eager" if self.fast is None else f"compiled with {self.fast.kernel.value} attention"

    def make_fast(self, fp8_previews: bool) -> None:
        """Compile it as a worker does, with the attention kernel that is fastest at its largest batch."""
        assert isinstance(self.adapter, CanBeFast)
        rows = max(self.batches[Operation.DENOISE_STEP])
        weight, text = next(self.adapter.transformer.parameters()), self.conditions(1).mask
        kernels = usable_kernels(weight.device, weight.dtype)
        padding = int((~text).sum())
        kernel = fastest_kernel(kernels, rows, self.tokens + text.shape[1], padding, self.adapter.transformer)
        self.fast = self.adapter.fast = accelerate(self.adapter.transformer, kernel, fp8_previews)
        self.resident = Resident(self.adapter.transformer, self.base_digest, fast=self.fast)

    def rolling_out(self, is_exact: bool = True) -> AbstractContextManager[None]:
        """Compute as a rollout does inside the block, or as a preview."""
        return self.resident.use(WeightsId(Version(0)), is_exact)

    @property
    def tokens(self) -> int:
        return self.adapter.latent_shape(self.size)[0]

    @property
    def trained_bytes(self) -> int:
        """Bytes of the trained weights, and so of their gradients."""
        return sum(weight.numel() * weight.element_size() for weight in self.trainer.sets.theta.values())

    def conditions(self, batch: int) -> ConditionBatch:
        return self.adapter.collate([self._text] * batch)


def tiny_subject(model: str, device: str, batches: Batches | None = None) -> ProfiledModel:
    """A shipped family by name, or one of its weights files."""
    content = families.read_weights(model)
    adapter = families.build(content, device)
    world = families.world_of(adapter)
    most = max((batches or TINY_BATCHES)[Operation.TRAIN_TIMESTEP])
    return ProfiledModel(
        model, adapter, adapter.native_size, adapter.encode(world.held_out(1))[0], content.digest,
        TrainConfig(micro_batch=most), batches or TINY_BATCHES, world,
    )  # fmt: skip


def random_qwen_image(
    device: torch.device,
    size: Size,
    shape: QwenImageShape | None = None,
    batches: Batches | None = None,
    algorithm: AlgorithmConfig | None = None,
) -> ProfiledModel:
    """The whole transformer and VAE with random weights, created on the device."""
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

    from spotlight.compute.models.qwen_image import QwenImageAdapter

    shape = shape or QwenImageShape()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with torch.device(device):
        transformer: Any = QwenImageTransformer2DModel(**shape.transformer).to(dtype).eval()
        vae: Any = AutoencoderKLQwenImage(**shape.vae)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    # The last sigma and the shifts are those of the released model; no duration depends on them.
    scheduler: Any = FlowMatchEulerDiscreteScheduler(
        base_shift=0.5, max_shift=0.9, base_image_seq_len=256, max_image_seq_len=8192, shift_terminal=0.02,
        use_dynamic_shifting=True, time_shift_type="exponential",
    )  # fmt: skip
    adapter = QwenImageAdapter(transformer, vae, scheduler, device=device)
    tokens, _ = adapter.latent_shape(size)
    batches = batches or (WIDE_BATCHES if tokens > WIDE_TOKENS else LARGE_BATCHES)
    train = TrainConfig(micro_batch=max(batches[Operation.TRAIN_TIMESTEP]), lora=LORA, gradient_checkpointing=True)
    text = Conditioning(torch.randn(TEXT_TOKENS, int(transformer.config.joint_attention_dim)))
    # Adapters are drawn on the device too: on the host, hundreds of millions of normals would take longest of all.
    with torch.device(device):
        return ProfiledModel(QWEN_IMAGE, adapter, size, text, "random", train, batches, algorithm=algorithm)


TINY_BATCHES: Batches = {
    Operation.DENOISE_STEP: (1, 2, 4, 8, 16, 32),
    Operation.TRAIN_TIMESTEP: (1, 4, 8, 16, 32),
    Operation.DECODE: (1, 8, 32),
    Operation.REWARD: (1, 4, 16),
}
QUICK_BATCHES: Batches = dict.fromkeys(TINY_BATCHES, (1, 4))
LARGE_BATCHES: Batches = {
    Operation.DENOISE_STEP: (1, 2, 4, 8, 16),
    Operation.TRAIN_TIMESTEP: (1, 2, 4, 8),
    Operation.DECODE: (1, 4),
}
WIDE_BATCHES: Batches = {
    Operation.DENOISE_STEP: (1, 2, 4),
    Operation.TRAIN_TIMESTEP: (1, 2),
    Operation.DECODE: (1, 2),
}
