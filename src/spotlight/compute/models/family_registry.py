"""Real model families as facts, free of torch: one `Family` value each, and the adapter that is imported on demand.

A new family is one adapter file and one value in `FAMILIES`. What the next ones take, without a change of this seam:

    Z-Image     the adapter reverses its time axis and returns a negated velocity; buckets of 32 tokens
    FLUX.2      `patch=2`, 128 channels per token, an own shift that depends on the step count: `_shift` of its adapter
    editing     the adapter appends the source image's tokens to x and drops them from the velocity; they are part of
                the prompt's Conditioning (a field beside `pooled`)
    Wan video   `frames=(1, 5, ..., 81)`: `Size` gets a number of frames (1 by default, left out of messages), and
                `Geometry.grid` returns (frames - 1) / 4 + 1 layers of tokens; x stays x_BSC. Wan 2.2 has two
                transformers: `velocity` chooses one by sigma, and both are children of `Adapter.transformer`.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotlight.compute.models.blocks import BlockStructure
from spotlight.core.errors import InputError, SizeError, WeightsError, suggestion
from spotlight.core.types import Size


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Image sizes that one model can make, and their tokens."""

    family: str
    patch: int
    """Edge of the square of latents that makes one token."""
    vae_scale: int
    latent_channels: int
    most_patches: int | None = None
    """Longest side in tokens; None without a limit."""

    @property
    def multiple(self) -> int:
        """Divisor of every height and width, in pixels."""
        return self.patch * self.vae_scale

    @property
    def token_channels(self) -> int:
        return self.latent_channels * self.patch**2

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens; raises SizeError if the model cannot make that size."""
        sides = (size.height, size.width)
        most = self.most_patches or max(*sides, self.multiple)
        patches = [min(max(1, round(side / self.multiple)), most) for side in sides]
        nearest = Size(*(count * self.multiple for count in patches))
        if size != nearest:
            limit = f" of at most {self.most_patches * self.multiple}" if self.most_patches else ""
            raise SizeError(
                f"An image of {size} cannot be made by {self.family}, because its height and width must be "
                f"positive multiples of {self.multiple}{limit}; the nearest size that can be made is {nearest}."
            )
        return patches[0], patches[1]

    def tokens(self, size: Size) -> int:
        rows, columns = self.grid(size)
        return rows * columns


@dataclass(frozen=True, kw_only=True)
class Family:
    """Facts of one family that hold for every checkpoint of it."""

    name: str
    adapter: str
    """`module:Class` of the adapter; `load_adapter_class` imports it."""
    pipeline: str
    """Class in model_index.json."""
    transformer: str
    """Class in transformer/config.json."""
    vae: str
    text: Mapping[str, str]
    """Folder and class of every text encoder and tokenizer."""
    tokenizer: str
    """Folder of the tokenizer whose count limits a prompt. CLIP reads the first 77 tokens of any prompt."""
    longest_prompt: int
    """Most tokens of a prompt. The pipelines cut longer prompts off; `encode` refuses them."""
    prompt_template: str = "{}"
    """The text that is encoded, with a place for the prompt; a pipeline may add its own words."""
    template_tokens: int = 0
    """Tokens of the template before the prompt, which the pipeline drops after encoding."""
    text_buckets: tuple[int, ...] = ()
    """Widths of padded text, ascending; empty if the family pads every prompt to its longest, without a mask."""
    clip_tokens: int = 0
    """Tokens before those of the counting tokenizer."""
    negative_prompt: str
    lora_targets: tuple[str, ...]
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    default_size: Size = field(default_factory=lambda: Size(512, 512))
    frames: tuple[int, ...] = (1,)
    """Numbers of frames that the family can make."""
    patch: int | None = None
    """Edge of a patch; None: `patch_size` of the transformer."""
    is_packed: bool = True
    """Whether the transformer takes tokens, so that its `in_channels` are those of a token."""
    blocks: BlockStructure = field(default_factory=BlockStructure)
    """What its blocks keep in memory."""
    batches_guidance: bool = False
    """Whether both halves of a guided velocity share one forward."""
    excluded_kernels: tuple[str, ...] = ()
    """Attention kernels that fail for this family."""

    @property
    def components(self) -> tuple[str, ...]:
        """Folders of a whole checkpoint."""
        return ("transformer", "vae", "scheduler", *self.text)

    def text_widths(self, longest_prompt: int) -> tuple[int, ...]:
        """Widths of padded text where prompts have at most `longest_prompt` tokens."""
        return self.text_buckets or (self.clip_tokens + longest_prompt,)

    def geometry(self, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Geometry:
        """Sizes and tokens from the two configs; raises WeightsError if these belong to different models."""
        levels = vae.get("block_out_channels")
        found = Geometry(
            family=self.name,
            patch=self.patch or int(transformer.get("patch_size", 2)),
            vae_scale=2 ** (len(levels) - 1) if levels else 2 ** len(vae.get("temperal_downsample", (0, 1, 1))),
            latent_channels=int(vae.get("latent_channels") or vae.get("z_dim") or 16),
            most_patches=transformer.get("pos_embed_max_size"),
        )
        takes = int(transformer["in_channels"])
        makes = found.token_channels if self.is_packed else found.latent_channels
        if takes != makes:
            raise WeightsError(
                f"The transformer takes {'tokens' if self.is_packed else 'latents'} of {takes} channels but the VAE "
                f"makes {makes}, because the two belong to different models; load both from one release."
            )
        return found

    def load_adapter_class(self) -> Any:
        """Import the adapter, and with it torch and diffusers."""
        module, _, name = self.adapter.partition(":")
        return getattr(importlib.import_module(module), name)


ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
# In SD3 and FLUX the prefix leaves out SD3.5's second, image-only attention (`attn2`), as others' recipes do.
JOINT_ATTENTION = tuple(f"attn.{layer}" for layer in ATTENTION)
FEED_FORWARD = ("net.0.proj", "net.2")

QWEN_IMAGE = Family(
    name="qwen-image",
    adapter="spotlight.compute.models.qwen_image:QwenImageAdapter",
    pipeline="QwenImagePipeline",
    transformer="QwenImageTransformer2DModel",
    vae="AutoencoderKLQwenImage",
    text={"text_encoder": "Qwen2_5_VLForConditionalGeneration", "tokenizer": "Qwen2Tokenizer"},
    tokenizer="tokenizer",
    longest_prompt=1024,
    prompt_template=(
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    template_tokens=34,
    # Multiples of 24, so that sequence parallelism of degree 1, 2, 3, 4, 6, 8, 12 or 24 splits the text evenly.
    text_buckets=(48, 96, 192, 384, 768, 1032),
    negative_prompt=" ",
    lora_targets=(*ATTENTION, *(f"{stream}_mlp.{layer}" for stream in ("img", "txt") for layer in FEED_FORWARD)),
)
SD3 = Family(
    name="sd3",
    adapter="spotlight.compute.models.sd3:SD3Adapter",
    pipeline="StableDiffusion3Pipeline",
    transformer="SD3Transformer2DModel",
    vae="AutoencoderKL",
    text={
        **{"text_encoder": "CLIPTextModelWithProjection", "tokenizer": "CLIPTokenizer"},
        **{"text_encoder_2": "CLIPTextModelWithProjection", "tokenizer_2": "CLIPTokenizer"},
        **{"text_encoder_3": "T5EncoderModel", "tokenizer_3": "T5TokenizerFast"},
    },
    tokenizer="tokenizer_3",
    longest_prompt=256,
    clip_tokens=77,
    negative_prompt="",
    lora_targets=JOINT_ATTENTION,
    dtypes=("bfloat16", "float16", "float32"),
    is_packed=False,
    blocks=BlockStructure(adapts_feed_forward=False, alive=5, alive_text=7),
    batches_guidance=True,
)
FLUX = Family(
    name="flux",
    adapter="spotlight.compute.models.flux:FluxAdapter",
    pipeline="FluxPipeline",
    transformer="FluxTransformer2DModel",
    vae="AutoencoderKL",
    text={
        **{"text_encoder": "CLIPTextModel", "tokenizer": "CLIPTokenizer"},
        **{"text_encoder_2": "T5EncoderModel", "tokenizer_2": "T5TokenizerFast"},
    },
    tokenizer="tokenizer_2",
    longest_prompt=512,
    negative_prompt="",
    lora_targets=(
        *JOINT_ATTENTION,
        *(f"{stream}.{layer}" for stream in ("ff", "ff_context") for layer in FEED_FORWARD),
    ),
    patch=2,
    blocks=BlockStructure(fused_norms=True, alive=5, alive_text=3, alive_trained=3),
    # Its backward pass fails with an illegal memory access (torch 2.11, H200).
    excluded_kernels=("cudnn",),
)
FAMILIES = {family.name: family for family in (SD3, FLUX, QWEN_IMAGE)}


def family_named(name: str) -> Family:
    if name not in FAMILIES:
        raise InputError(f"there is no model family '{name}' in diffusers layout: {suggestion(name, FAMILIES)}")
    return FAMILIES[name]


def family_of_class(class_name: str, source: str) -> Family:
    """The family of a pipeline or transformer class; raises WeightsError with the supported ones if there is none."""
    by_class = {name: family for family in FAMILIES.values() for name in (family.pipeline, family.transformer)}
    if class_name not in by_class:
        kind = "pipeline" if class_name.endswith("Pipeline") else "transformer"
        supported = {getattr(family, kind): family.name for family in FAMILIES.values()}
        listed = ", ".join(f"{name} ({family})" for name, family in supported.items())
        raise WeightsError(
            f"The model '{source}' is a {class_name}, which is not supported, because Spotlight has adapters for "
            f"{listed} only; {suggestion(class_name, supported)}"
        )
    return by_class[class_name]
