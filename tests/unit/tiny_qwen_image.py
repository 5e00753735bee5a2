"""The parts of the tiny random Qwen-Image, for tests that need some of them."""

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from spotlight.assets import asset
from spotlight.compute.models.adapter import Conditioning
from spotlight.compute.models.family_registry import QWEN_IMAGE
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.models.random_weights import write_tiny

SETTINGS = json.loads(asset("random/tiny/qwen-image.json").read_text())
TEXT_DIM = SETTINGS["transformer"]["joint_attention_dim"]


def tiny_text_encoder(vocabulary: int) -> Qwen2_5_VLForConditionalGeneration:
    settings = json.loads(asset("random/tiny/qwen-image.json").read_text())["text_encoder"]
    settings["text_config"]["vocab_size"] = vocabulary
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**settings)).eval()


def tiny_transformer(in_channels: int = 64) -> QwenImageTransformer2DModel:
    sizes = {"in_channels": in_channels, "out_channels": in_channels // 4}
    return QwenImageTransformer2DModel(**{**SETTINGS["transformer"], **sizes})


def tiny_vae() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(**SETTINGS["vae"])


def qwen_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(**SETTINGS["scheduler"])


def empty_pipeline(**components) -> QwenImagePipeline:
    names = ("scheduler", "vae", "text_encoder", "tokenizer", "transformer")
    pipeline = QwenImagePipeline(**{name: components.get(name) for name in names})
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def conditioning(tokens: int, seed: int) -> Conditioning:
    """A random conditioning, as of a text encoder."""
    return Conditioning(torch.randn(tokens, TEXT_DIM, generator=torch.Generator().manual_seed(seed)))


def tiny_qwen_adapter(seed: int = 0) -> QwenImageAdapter:
    """A model without a text encoder whose random weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return QwenImageAdapter(tiny_transformer().eval(), tiny_vae(), qwen_scheduler())


def save_tiny_model(root: Path) -> Path:
    return write_tiny(QWEN_IMAGE, root)
