"""The adapter that real families share: all but the transformer's call, the text encoding and the VAE's scaling.

Invariant: an ODE rollout over `velocity` is the family's own diffusers pipeline bit for bit in fp32, guided or not
(tests/conformance/test_families.py). Shapes: B batch, T text tokens, D text width, S image tokens, C channels.
"""

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import diffusers
import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from torch import Tensor, nn
from torch.nn import functional as F

from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.models import components
from spotlight.compute.models.adapter import ConditionBatch, Conditioning, joined_conditions, of_one_width
from spotlight.compute.models.component_files import load
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.packing import unpatchify
from spotlight.compute.models.text_encoding import EncodesText, TextHalf, read_conditioning
from spotlight.compute.weights.upload import moved
from spotlight.core.errors import ConfigError, PromptError, WeightsError
from spotlight.core.types import Prompt, Size

JOINED_ROWS = 4
"""Both halves of a guided velocity share a forward of a fast model up to this many rows, which leave a GPU idle."""


class PipelineAdapter(EncodesText):
    """One model on one device; the first `encode` loads the text encoders, unless prompts are read from a folder.

    `transformer`, `vae` and `scheduler` are diffusers' classes, typed `Any` because a type checker sees only
    placeholders for them. `load_text` returns the family's pipeline with its text components only.
    """

    batches_guidance = False
    """Whether both halves of a guided velocity share one forward. The default of a family is its pipeline's."""
    embeds_guidance = False
    """Whether the transformer takes the guidance as an input, so that there is one half only."""
    spaces_sigmas = True
    """Whether the pipeline passes evenly spaced sigmas to the scheduler; otherwise the scheduler spaces them."""
    pads_text = True
    """Whether text is padded to a bucket and always masked. False is the pipelines' own call with a single prompt."""

    def __init__(
        self,
        transformer: Any,
        vae: Any,
        scheduler: Any,
        *,
        load_text: Callable[[], Any] | None = None,
        device: torch.device | str = "cpu",
        max_text_tokens: int | None = None,
    ) -> None:
        self.family = self.facts.name
        self.geometry = self.facts.geometry(transformer.config, vae.config)
        self.heads = int(transformer.config.num_attention_heads)
        self.lora_targets: Sequence[str] = self.facts.lora_targets
        self._device = torch.device(device)
        # Read before any LoRA is added: its fp32 weights must not change the compute type of the base weights.
        self._dtype: torch.dtype = transformer.dtype
        self.transformer: nn.Module = moved(transformer, self._device)
        vae_fp32 = vae if vae.dtype == torch.float32 else vae.to(torch.float32)
        self._vae = vae_fp32.to(self._device).requires_grad_(False).eval()
        self._vae_home = self._device
        self._decoding = threading.Lock()
        self._scheduler = scheduler
        self.text = TextHalf(self.facts, load_text, self._device, max_text_tokens)
        self._embeddings: EmbeddingFolder | None = None
        self.fast: FastModel | None = None
        """Set when the transformer was made fast (`compute/fast`)."""
        self.least_text_width = 0
        """Padded text is at least this wide: a compiled transformer is faster with one shape."""
        self._unconditional: Conditioning | None = None

    @classmethod
    def from_pretrained(
        cls,
        folder_or_hub_id: str,
        device: torch.device | str,
        dtype: torch.dtype = torch.bfloat16,
        max_text_tokens: int | None = None,
    ) -> Self:
        """Load a folder in diffusers layout or a hub id: the transformer in `dtype`, the VAE in fp32."""
        facts = cls.facts
        source = components.checked_source(folder_or_hub_id)
        components.check_source(source, facts, dtype)
        return cls(
            components.load_weights(getattr(diffusers, facts.transformer), source, "transformer", dtype, exact=True),
            components.load_weights(getattr(diffusers, facts.vae), source, "vae", torch.float32, exact=True),
            load(diffusers.FlowMatchEulerDiscreteScheduler, source, "scheduler"),
            load_text=lambda: components.load_text_pipeline(facts, source, dtype),
            device=device,
            max_text_tokens=max_text_tokens,
        )

    @property
    def device(self) -> torch.device:
        return self._device

    def offload_vae(self) -> None:
        """From now on keep the VAE in host memory; a decoding uploads it and releases it."""
        self._vae_home = torch.device("cpu")
        self._vae.to(self._vae_home)

    def read_embeddings(self, folder: EmbeddingFolder) -> None:
        """From now on read conditionings instead of encoding prompts."""
        self._embeddings = folder

    def encode(self, prompts: Sequence[Prompt]) -> list[Conditioning]:
        if self._embeddings is not None:
            return [read_conditioning(self._embeddings.file(prompt.text)) for prompt in prompts]
        return [self.text.encode(prompt.text) for prompt in prompts]

    def unconditional(self) -> Conditioning:
        if self._unconditional is None:
            self._unconditional = self.encode([Prompt(text=self.facts.negative_prompt)])[0]
        return self._unconditional

    def bucket_width(self, tokens: int) -> int:
        """The smallest bucket that holds `tokens` text tokens and is at least the least width."""
        widths = self.facts.text_widths(self.text.most_tokens)
        for width in widths:
            if max(tokens, self.least_text_width) <= width:
                return width
        raise PromptError(
            f"A conditioning of {tokens} text tokens cannot be batched, because the widest bucket is "
            f"{widths[-1]}; shorten the prompt."
        )

    def collate(self, conditionings: Sequence[Conditioning], width: int | None = None) -> ConditionBatch:
        """Pad to `width`, or to the smallest bucket that holds all of them, on the model's device."""
        longest = max(len(conditioning.embeds) for conditioning in conditionings)
        bucket = self.bucket_width(longest) if self.pads_text else longest
        padded = bucket if width is None else width
        if longest > padded:
            raise PromptError(
                f"A conditioning of {longest} text tokens does not fit a width of {padded}, because text is "
                f"never cut off; use a width of at least {longest}."
            )
        embeds_BTD = torch.stack([F.pad(c.embeds, (0, 0, 0, padded - len(c.embeds))) for c in conditionings])
        lengths_B1 = torch.tensor([[len(c.embeds)] for c in conditionings])
        pooled = [c.pooled.to(self._dtype) for c in conditionings if c.pooled is not None]
        batch = ConditionBatch(
            embeds_BTD.to(self._dtype), torch.arange(padded) < lengths_B1, torch.stack(pooled) if pooled else None
        )
        return batch.to(self._device)

    def latent_shape(self, size: Size) -> tuple[int, int]:
        return self.geometry.tokens(size), self.geometry.token_channels

    def schedule(self, size: Size, steps: int) -> Tensor:
        tokens, _ = self.latent_shape(size)
        config = self._scheduler.config
        fewest = 2 if config.shift_terminal else 1
        if steps < fewest:
            raise ConfigError(
                f"A schedule of {steps} steps cannot be made, because this model's scheduler needs at least "
                f"{fewest} to stretch it to its last sigma; raise the number of steps."
            )
        # A scheduler is stateful; a fresh one keeps this a pure function.
        scheduler = type(self._scheduler).from_config(config)
        spacing: dict[str, Any] = {"num_inference_steps": steps}
        if self.spaces_sigmas:
            spacing["sigmas"] = np.linspace(1.0, 1 / steps, steps)
        if config.use_dynamic_shifting:
            spacing["mu"] = self._shift(tokens, steps)
        scheduler.set_timesteps(**spacing)
        sigmas: Tensor = scheduler.sigmas
        return sigmas

    def velocity(
        self,
        x_BSC: Tensor,
        sigma_B: Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        size: Size,
    ) -> Tensor:
        if uncond is None or self.embeds_guidance:
            return self._timed(x_BSC, sigma_B, cond, guidance, size)
        joins = self.batches_guidance or (self.fast is not None and len(x_BSC) <= JOINED_ROWS)
        if self.pads_text or joins:
            cond, uncond = of_one_width(cond, uncond)
        if joins:
            both = joined_conditions([uncond, cond])
            uncond_BSC, cond_BSC = self._timed(x_BSC.repeat(2, 1, 1), sigma_B.repeat(2), both, guidance, size).chunk(2)
        else:
            cond_BSC = self._timed(x_BSC, sigma_B, cond, guidance, size)
            uncond_BSC = self._timed(x_BSC, sigma_B, uncond, guidance, size)
        return self._guided(cond_BSC, uncond_BSC, guidance)

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        rows, columns = self.geometry.grid(size)
        patch = self.geometry.patch
        tokens_BSC = x0_BSC.to(device=self._device, dtype=torch.float32)
        latents_BCHW = self._unscaled(
            unpatchify(tokens_BSC, patch, self.geometry.latent_channels, rows * patch, columns * patch)
        )
        # One image at a time, so that neither memory nor the image depends on its neighbours in the batch.
        with self._uploaded_vae():
            images = [self._decode_one(row_1CHW) for row_1CHW in torch.split(latents_BCHW, 1)]
        return (torch.cat(images) * 0.5 + 0.5).clamp(0, 1)

    @contextmanager
    def _uploaded_vae(self) -> Iterator[None]:
        """The VAE on the model's device; an offloaded one returns to its own weights in host memory, without a copy."""
        if self._vae_home == self._device:
            yield
            return
        tensors = [*self._vae.parameters(), *self._vae.buffers()]
        # One thread at a time, because images are decoded beside training and rollouts.
        with self._decoding:
            at_home = [tensor.data for tensor in tensors]
            try:
                for tensor in tensors:
                    tensor.data = tensor.data.to(self._device)
                yield
            finally:
                for tensor, kept in zip(tensors, at_home, strict=True):
                    tensor.data = kept

    @abstractmethod
    def _forward(self, x_BSC: Tensor, timestep_B: Tensor, cond: ConditionBatch, guidance: float, size: Size) -> Tensor:
        """One pass of the transformer in its compute type; `timestep_B` is 1000 sigma in fp32."""

    def _shift(self, tokens: int, steps: int) -> float:
        """Mu of a dynamic shift, which each pipeline computes outside its scheduler."""
        config = self._scheduler.config
        return float(
            calculate_shift(
                tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
            )
        )

    def _guided(self, cond_BSC: Tensor, uncond_BSC: Tensor, guidance: float) -> Tensor:
        """Combine both halves; gradients flow through both."""
        return uncond_BSC + guidance * (cond_BSC - uncond_BSC)

    def _unscaled(self, latents_BCHW: Tensor) -> Tensor:
        """Latents as the VAE made them, from those that the transformer sees."""
        return (latents_BCHW / self._vae.config.scaling_factor) + self._vae.config.shift_factor

    def _decode_one(self, latents_1CHW: Tensor) -> Tensor:
        image_13HW: Tensor = self._vae.decode(latents_1CHW, return_dict=False)[0]
        return image_13HW

    def _timed(self, x_BSC: Tensor, sigma_B: Tensor, cond: ConditionBatch, guidance: float, size: Size) -> Tensor:
        """One forward; fp32 in and out, whatever the compute type."""
        timestep_B = sigma_B.to(device=self._device, dtype=torch.float32) * 1000
        x = x_BSC.to(self._dtype)
        if self.fast is None:
            return self._forward(x, timestep_B, cond, guidance, size).float()
        pooled = [] if cond.pooled is None else [cond.pooled]

        def forward(x: Tensor, timestep_B: Tensor, embeds: Tensor, mask: Tensor, *pooled: Tensor) -> Tensor:
            given = ConditionBatch(embeds, mask, pooled[0] if pooled else None)
            return self._forward(x, timestep_B, given, guidance, size).float()

        return self.fast.run((guidance, size), forward, [x, timestep_B, cond.embeds, cond.mask, *pooled])


def load_model(
    folder_or_hub_id: str, device: torch.device | str, dtype: torch.dtype, max_text_tokens: int | None = None
) -> PipelineAdapter:
    """Load a folder in diffusers layout or a hub id with the adapter of its family."""
    source = components.checked_source(folder_or_hub_id)
    family = components.family_of_source(source)
    if family is None:
        raise WeightsError(
            f"The family of '{source}' is unknown, because neither its model_index.json nor its "
            "transformer/config.json can be read; fetch the whole model, in diffusers layout."
        )
    adapter: PipelineAdapter = family.load_adapter_class().from_pretrained(source, device, dtype, max_text_tokens)
    return adapter
