"""A random Qwen-Image small enough for a test, with every component of the real one, in diffusers layout."""

import json
from pathlib import Path

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from spotlight.compute.models.adapter import Conditioning
from spotlight.compute.models.qwen_image import QwenImageAdapter

TEXT_DIM = 16


def tiny_tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE of the template's words, so its prefix has 34 tokens, as in the real vocabulary."""
    template = empty_pipeline().prompt_template_encode
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        min_frequency=1,
        show_progress=False,
    )
    bpe.train_from_iterator([template], trainer)
    learned = json.loads(bpe.to_str())["model"]
    tokenizer = Qwen2Tokenizer(vocab=learned["vocab"], merges=[tuple(merge) for merge in learned["merges"]])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


def tiny_text_encoder(vocabulary: int) -> Qwen2_5_VLForConditionalGeneration:
    text = {
        "vocab_size": vocabulary,
        "hidden_size": TEXT_DIM,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)).eval()


def tiny_transformer(in_channels: int = 64) -> QwenImageTransformer2DModel:
    return QwenImageTransformer2DModel(
        in_channels=in_channels,
        out_channels=in_channels // 4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        axes_dims_rope=(4, 6, 6),
    )


def tiny_vae() -> AutoencoderKLQwenImage:
    return AutoencoderKLQwenImage(base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)


def qwen_scheduler() -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(
        base_shift=0.5,
        max_shift=0.9,
        base_image_seq_len=256,
        max_image_seq_len=8192,
        shift_terminal=0.02,
        use_dynamic_shifting=True,
        time_shift_type="exponential",
    )


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
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(root / "tokenizer")
    tiny_text_encoder(len(tokenizer)).save_pretrained(root / "text_encoder")
    tiny_transformer().save_pretrained(root / "transformer")
    tiny_vae().save_pretrained(root / "vae")
    qwen_scheduler().save_pretrained(root / "scheduler")
    return root
