"""Qwen-Image as an adapter: the dual-stream transformer, its VAE, its schedule and its text encoder.

Invariant: an ODE rollout over `velocity` is diffusers' QwenImagePipeline bit for bit in fp32, guided or not
(tests/unit/test_qwen_image.py). Shapes: B batch, T text tokens, D text width, S image tokens, C channels,
F frames.
"""

import gc
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    PreTrainedTokenizerBase,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
)

from spotlight.compute.data.worlds import WORLD_OF_FAMILY
from spotlight.compute.models.adapter import ConditionBatch, Conditioning
from spotlight.compute.models.packing import unpatchify
from spotlight.compute.models.qwen_dit import LORA_TARGETS, true_cfg
from spotlight.core.errors import ConfigError, PromptError, SizeError, WeightsError
from spotlight.core.types import Prompt, Size

# Multiples of 24, so that sequence parallelism of degree 1, 2, 3, 4, 6, 8, 12 or 24 splits the text evenly.
TEXT_BUCKETS = (48, 96, 192, 384, 768, 1032)
# The pipeline's limit. The pipeline truncates longer prompts; `encode` refuses them.
MAX_TEXT_TOKENS = 1024
NEGATIVE_PROMPT = Prompt(text=" ")

TextModel = tuple[nn.Module, PreTrainedTokenizerBase]


def bucket_width(tokens: int) -> int:
    """The smallest bucket that holds `tokens` text tokens."""
    for width in TEXT_BUCKETS:
        if tokens <= width:
            return width
    raise PromptError(
        f"A conditioning of {tokens} text tokens cannot be batched, because the widest bucket is "
        f"{TEXT_BUCKETS[-1]}; shorten the prompt."
    )


class QwenImageAdapter:
    """Qwen-Image on one device; the first `encode` loads the text encoder, which can be released.

    `transformer`, `vae` and `scheduler` are diffusers' QwenImageTransformer2DModel, AutoencoderKLQwenImage
    and FlowMatchEulerDiscreteScheduler, typed `Any` because a type checker sees only placeholders for them.
    """

    family = "qwen-image"

    def __init__(
        self,
        transformer: Any,
        vae: Any,
        scheduler: Any,
        *,
        load_text: Callable[[], TextModel] | None = None,
        device: torch.device | str = "cpu",
        max_text_tokens: int = MAX_TEXT_TOKENS,
    ) -> None:
        self._device = torch.device(device)
        self._patch = int(transformer.config.patch_size)
        self._token_channels = int(transformer.config.in_channels)
        if self._token_channels != vae.config.z_dim * self._patch**2:
            raise WeightsError(
                f"The transformer takes tokens of {self._token_channels} channels but the VAE makes "
                f"{vae.config.z_dim * self._patch**2}, because the two belong to different models; load both "
                f"from one release."
            )
        # Read before any LoRA is added: its fp32 weights must not change the compute type of the base weights.
        self._dtype: torch.dtype = transformer.dtype
        self.heads = int(transformer.config.num_attention_heads)
        self.lora_targets: Sequence[str] = LORA_TARGETS
        self.transformer: nn.Module = transformer.to(self._device)
        vae_fp32 = vae if vae.dtype == torch.float32 else vae.to(torch.float32)
        self._vae = vae_fp32.to(self._device).requires_grad_(False).eval()
        self._scheduler = scheduler
        self._load_text = load_text
        self._max_text_tokens = max_text_tokens
        self._text_pipeline: Any = None
        self._unconditional: Conditioning | None = None

    @classmethod
    def from_pretrained(
        cls,
        folder_or_hub_id: str,
        device: torch.device | str,
        dtype: torch.dtype = torch.bfloat16,
        max_text_tokens: int = MAX_TEXT_TOKENS,
    ) -> "QwenImageAdapter":
        """Load a folder in diffusers layout or a hub id: the transformer in `dtype`, the VAE in fp32."""
        source = _checked_source(folder_or_hub_id)
        _check_family(source)

        def load_text() -> TextModel:
            tokenizer = _load(Qwen2Tokenizer, source, "tokenizer")
            encoder = _load_weights(Qwen2_5_VLForConditionalGeneration, source, "text_encoder", dtype)
            return encoder, tokenizer

        return cls(
            _load_weights(QwenImageTransformer2DModel, source, "transformer", dtype, exact=True),
            _load_weights(AutoencoderKLQwenImage, source, "vae", torch.float32, exact=True),
            _load(FlowMatchEulerDiscreteScheduler, source, "scheduler"),
            load_text=load_text,
            device=device,
            max_text_tokens=max_text_tokens,
        )

    @property
    def device(self) -> torch.device:
        return self._device

    def encode(self, prompts: Sequence[Prompt]) -> list[Conditioning]:
        pipeline = self._text()
        return [self._encode_one(pipeline, prompt) for prompt in prompts]

    def unconditional(self) -> Conditioning:
        if self._unconditional is None:
            self._unconditional = self.encode([NEGATIVE_PROMPT])[0]
        return self._unconditional

    def release_text_encoder(self) -> None:
        """Free the text encoder's memory; a later `encode` loads it again."""
        self._text_pipeline = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def collate(self, conditionings: Sequence[Conditioning], width: int | None = None) -> ConditionBatch:
        """Pad to `width`, or to the smallest bucket that holds all of them, on the model's device."""
        longest = max(len(conditioning.embeds) for conditioning in conditionings)
        padded = bucket_width(longest) if width is None else width
        if longest > padded:
            raise PromptError(
                f"A conditioning of {longest} text tokens does not fit a width of {padded}, because text is "
                f"never cut off; use a width of at least {longest}."
            )
        embeds_BTD = torch.stack([F.pad(c.embeds, (0, 0, 0, padded - len(c.embeds))) for c in conditionings])
        lengths_B1 = torch.tensor([[len(c.embeds)] for c in conditionings])
        batch = ConditionBatch(embeds_BTD.to(self._dtype), torch.arange(padded) < lengths_B1)
        return batch.to(self._device)

    def latent_shape(self, size: Size) -> tuple[int, int]:
        rows, columns = self._grid(size)
        return rows * columns, self._token_channels

    def schedule(self, size: Size, steps: int) -> Tensor:
        tokens, _ = self.latent_shape(size)
        config = self._scheduler.config
        fewest = 2 if config.shift_terminal else 1
        if steps < fewest:
            raise ConfigError(
                f"A schedule of {steps} steps cannot be made, because this model's scheduler needs at least "
                f"{fewest} to stretch it to its last sigma; raise the number of steps."
            )
        mu = calculate_shift(
            tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
        )
        # A scheduler is stateful; a fresh one keeps this a pure function.
        scheduler = type(self._scheduler).from_config(config)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
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
        if uncond is None:
            return self._forward(x_BSC, sigma_B, cond, size)
        width = max(cond.mask.shape[1], uncond.mask.shape[1])
        cond_BSC = self._forward(x_BSC, sigma_B, _widened(cond, width), size)
        uncond_BSC = self._forward(x_BSC, sigma_B, _widened(uncond, width), size)
        return true_cfg(cond_BSC, uncond_BSC, guidance)

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        rows, columns = self._grid(size)
        config = self._vae.config
        packed_BSC = x0_BSC.to(device=self._device, dtype=torch.float32)
        latents_BCHW = unpatchify(packed_BSC, self._patch, config.z_dim, rows * self._patch, columns * self._patch)
        mean_C11 = torch.tensor(config.latents_mean, device=self._device).view(-1, 1, 1)
        # Division by the reciprocal, as in the pipeline: a product with the deviation differs in the last bit.
        inverse_std_C11 = 1.0 / torch.tensor(config.latents_std, device=self._device).view(-1, 1, 1)
        scaled_BCFHW = (latents_BCHW / inverse_std_C11 + mean_C11).unsqueeze(2)
        # One image at a time, so that neither memory nor the image depends on its neighbours in the batch.
        images = [self._vae.decode(row, return_dict=False)[0][:, :, 0] for row in torch.split(scaled_BCFHW, 1)]
        return (torch.cat(images) * 0.5 + 0.5).clamp(0, 1)

    def _forward(self, x_BSC: Tensor, sigma_B: Tensor, cond: ConditionBatch, size: Size) -> Tensor:
        """One pass of the transformer; fp32 in and out, whatever its compute type."""
        # The pipeline's timestep, 1000 sigma / 1000 in fp32, is at times an ulp off sigma; cast it only once.
        timestep_B = (sigma_B.to(device=self._device, dtype=torch.float32) * 1000 / 1000).to(self._dtype)
        velocity_BSC: Tensor = self.transformer(
            hidden_states=x_BSC.to(self._dtype),
            timestep=timestep_B,
            encoder_hidden_states=cond.embeds.to(self._dtype),
            encoder_hidden_states_mask=cond.mask,
            img_shapes=[[(1, *self._grid(size))]] * len(x_BSC),
            return_dict=False,
        )[0]
        return velocity_BSC.float()

    def _grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens."""
        multiple = int(self._vae.spatial_compression_ratio) * self._patch
        if size.height < 1 or size.width < 1 or size.height % multiple or size.width % multiple:
            nearest = Size(*(max(1, round(side / multiple)) * multiple for side in (size.height, size.width)))
            raise SizeError(
                f"An image of {size} cannot be made by {self.family}, because its height and width must be "
                f"positive multiples of {multiple}; the nearest size that can be made is {nearest}."
            )
        return size.height // multiple, size.width // multiple

    def _text(self) -> Any:
        """The text half of the pipeline, with its template and its count of dropped tokens."""
        if self._text_pipeline is None:
            if self._load_text is None:
                raise WeightsError(
                    "Prompts cannot be encoded, because this adapter was built without a text encoder; pass "
                    "`load_text`, or load the model with `from_pretrained`."
                )
            encoder, tokenizer = self._load_text()
            pipeline_class: Any = QwenImagePipeline
            self._text_pipeline = pipeline_class(
                scheduler=None,
                vae=None,
                text_encoder=encoder.to(self._device).requires_grad_(False).eval(),
                tokenizer=tokenizer,
                transformer=None,
            )
        return self._text_pipeline

    @torch.no_grad()
    def _encode_one(self, pipeline: Any, prompt: Prompt) -> Conditioning:
        token_ids = pipeline.tokenizer(pipeline.prompt_template_encode.format(prompt.text)).input_ids
        tokens = len(token_ids) - pipeline.prompt_template_encode_start_idx
        if tokens > self._max_text_tokens:
            raise PromptError(
                f"The prompt '{prompt.text[:40]}...' has {tokens} tokens, more than the "
                f"{self._max_text_tokens} that can be encoded, because a prompt is never cut off; shorten it."
            )
        embeds_1TD, _ = pipeline.encode_prompt(
            prompt.text, device=self._device, max_sequence_length=self._max_text_tokens
        )
        return Conditioning(embeds_1TD[0].cpu())


def _widened(batch: ConditionBatch, width: int) -> ConditionBatch:
    extra = width - batch.mask.shape[1]
    if extra == 0:
        return batch
    return ConditionBatch(F.pad(batch.embeds, (0, 0, 0, extra)), F.pad(batch.mask, (0, extra)), batch.pooled)


def _checked_source(folder_or_hub_id: str) -> str:
    """Return an existing folder or a plausible hub id (`owner/name`); raises WeightsError otherwise."""
    folder = Path(folder_or_hub_id).expanduser()
    if folder.is_dir():
        return str(folder)
    owner, _, name = folder_or_hub_id.partition("/")
    if owner in ("", ".", "..", "~") or not name or "/" in name:
        raise WeightsError(
            f"There are no weights at '{folder_or_hub_id}', because it is neither a folder nor a hub id "
            f"(owner/name); give the folder of a model in diffusers layout."
        )
    return folder_or_hub_id


def _check_family(source: str) -> None:
    """Refuse another family by its class name, before comparing tensors.

    A folder has the class name in model_index.json. For a hub id only the transformer's settings are fetched, which
    are needed anyway.
    """
    index = Path(source) / "model_index.json"
    if index.is_file():
        found, ours = _class_name(lambda: json.loads(index.read_text())), QwenImagePipeline.__name__
    else:
        ours = QwenImageTransformer2DModel.__name__
        found = _class_name(lambda: QwenImageTransformer2DModel.load_config(source, subfolder="transformer"))
    if found not in (None, ours):
        raise WeightsError(
            f"The model '{source}' is a {found}, which is not supported: a model in diffusers layout must be a "
            f"{ours} (Qwen-Image); name one, or one of the families {', '.join(WORLD_OF_FAMILY)}."
        )


def _class_name(read: Callable[[], Any]) -> str | None:
    """Class name in the settings; None if unreadable, which loading the component then reports."""
    try:
        settings = read()
        return str(settings["_class_name"])
    except (OSError, ValueError, RuntimeError, KeyError, TypeError):
        return None


def _load(component_class: Any, source: str, component: str, **options: Any) -> Any:
    if Path(source).is_dir() and not (Path(source) / component).is_dir():
        raise WeightsError(
            f"The model in '{source}' has no '{component}', because that folder is missing; fetch the whole "
            f"model, in diffusers layout."
        )
    try:
        return component_class.from_pretrained(source, subfolder=component, **options)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".;: ")
        raise WeightsError(
            f"The '{component}' of '{source}' cannot be loaded, because its files are missing, cut short or "
            f"altered ({reason}); fetch them again."
        ) from problem


def _load_weights(model_class: Any, source: str, component: str, dtype: torch.dtype, exact: bool = False) -> Any:
    """Load a model and refuse missing tensors; `exact` also refuses surplus tensors."""
    # Never a pickle, the fallback of both libraries where there is no safetensors file.
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True}
    model, report = _load(model_class, source, component, **options)
    # The libraries only warn about missing tensors and leave them random.
    absent = sorted(str(key) for key in (*report["missing_keys"], *report["mismatched_keys"]))
    if absent:
        raise WeightsError(
            f"The '{component}' of '{source}' lacks {len(absent)} tensors (first: {absent[0]}), because its "
            f"weights and its config do not belong together; fetch both from one release."
        )
    # The libraries accept surplus tensors; a config with too few layers would run as a shallower model.
    surplus = sorted(str(key) for key in report["unexpected_keys"])
    if exact and surplus:
        raise WeightsError(
            f"The '{component}' of '{source}' has {len(surplus)} tensors too many (first: {surplus[0]}), because its "
            f"weights and its config do not belong together; fetch both from one release."
        )
    return model
