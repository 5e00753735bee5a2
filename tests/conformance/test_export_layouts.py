"""The exported LoRA of every family: exact in its own diffusers pipeline, complete for ComfyUI's key rules."""

import json
import logging

import pytest
import torch
from family_models import GUIDANCE, SIZE, family_model, loaded, noise, written
from safetensors.torch import save_file

from spotlight.compute.export.adapters import Adapters, by_module
from spotlight.compute.export.lora_layouts import COMFYUI, comfyui_layout, diffusers_layout
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.core.errors import WeightsError

POWER_OF_TWO = LoraConfig(rank=4, alpha=8.0)
OTHER_SCALE = LoraConfig(rank=3, alpha=5.0)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request, tmp_path_factory):
    return written(request.param, tmp_path_factory.mktemp(request.param) / request.param)


def trained(folder, lora: LoraConfig):
    """An adapter with random LoRA parameters, and these parameters as a run would publish them."""
    adapter = loaded(folder.name, folder)
    select_trainable(adapter.transformer, lora, adapter.lora_targets, seed=3)
    generator = torch.Generator().manual_seed(4)
    parameters = {name: p for name, p in adapter.transformer.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return adapter, {name: p.detach().clone() for name, p in parameters.items()}


def grouped(folder, parameters, lora: LoraConfig) -> Adapters:
    return by_module(parameters, lora, loaded(folder.name, folder).transformer, FAMILIES[folder.name].lora_targets)


@pytest.mark.parametrize("lora", [POWER_OF_TWO, OTHER_SCALE], ids=["power-of-two", "other-scale"])
def test_lora_in_the_pipeline_gives_the_trained_adapters_output_bit_for_bit(folder, tmp_path, caplog, lora):
    adapter, parameters = trained(folder, lora)
    tensors, metadata = diffusers_layout(grouped(folder, parameters, lora))
    assert len(tensors) == len(parameters)
    save_file(tensors, tmp_path / "pytorch_lora_weights.safetensors", metadata=metadata)
    model = family_model(folder.name, folder)
    loggers = [logging.getLogger(name) for name in ("diffusers", "peft")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
        # A command that ran before in this process may have silenced it.
        logger.setLevel(logging.WARNING)
    try:
        model.pipeline.load_lora_weights(tmp_path)
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)
    # The pipelines note that a text encoder has no LoRA; a key without a match would be another message.
    unmatched = [record.message for record in caplog.records if "prefix='text_encoder" not in record.message]
    assert not unmatched
    reached = {name: p for name, p in model.pipeline.transformer.named_parameters() if ".lora_" in name}
    assert len(reached) == len(parameters)
    cond, uncond = model.conditions()
    guidance = GUIDANCE[folder.name]
    base = velocity(model.adapter, noise(2), cond, uncond, guidance)
    model.adapter.transformer = model.pipeline.transformer
    theirs = velocity(model.adapter, noise(2), cond, uncond, guidance)
    assert torch.equal(theirs, velocity(adapter, noise(2), cond, uncond, guidance))
    assert (theirs - base).abs().max() > 1e-3


@torch.no_grad()
def velocity(adapter, x_BSC, cond, uncond, guidance) -> torch.Tensor:
    return adapter.velocity(x_BSC, torch.tensor([0.8, 0.4]), cond, uncond, guidance, SIZE)


def test_program_that_ignores_the_metadata_applies_the_same_strength(folder):
    _, parameters = trained(folder, POWER_OF_TWO)
    adapters = grouped(folder, parameters, POWER_OF_TWO)
    tensors, _ = diffusers_layout(adapters)
    for module, change in adapters.modules.items():
        stored = tensors[f"transformer.{module}.lora_B.weight"] @ tensors[f"transformer.{module}.lora_A.weight"]
        torch.testing.assert_close(stored, 2.0 * change.up_OR @ change.down_RI)


def test_adapters_with_a_missing_surplus_or_misshapen_tensor_are_refused(folder):
    _, parameters = trained(folder, POWER_OF_TWO)
    first = min(parameters)
    lacking = {name: tensor for name, tensor in parameters.items() if name != first}
    surplus = {**parameters, "proj_out.lora_A.policy.weight": torch.zeros(4, 4)}
    misshapen = {**parameters, first: torch.zeros(1, 1)}
    for wrong in (lacking, surplus, misshapen):
        with pytest.raises(WeightsError, match="1 are missing, unknown or of another shape"):
            grouped(folder, wrong, POWER_OF_TWO)


# --- ComfyUI ---

SUFFIXES = ("lora_down.weight", "lora_up.weight", "alpha")
QWEN_MODULES = (
    *(f"attn.{layer}" for layer in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj")),
    *("attn.to_add_out", "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
)
FLUX_STREAM = ("attn.qkv", "attn.proj", "mlp.0", "mlp.2")
PLACES = {
    # Two blocks each; the last joint block of SD3 has no text output, so no `context_block.attn.proj`.
    "qwen-image": {f"transformer_blocks.{block}.{module}" for block in (0, 1) for module in QWEN_MODULES},
    "sd3": {
        *(f"joint_blocks.{block}.x_block.attn.{part}" for block in (0, 1) for part in ("qkv", "proj")),
        *("joint_blocks.0.context_block.attn.qkv", "joint_blocks.0.context_block.attn.proj"),
        "joint_blocks.1.context_block.attn.qkv",
    },
    # One double and one single block.
    "flux": {
        *(f"double_blocks.0.{stream}_{part}" for stream in ("img", "txt") for part in FLUX_STREAM),
        "single_blocks.0.linear1_qkv",
    },
}
"""Weights of ComfyUI's models that the adapters of the tiny checkpoints change, from its model definitions."""


def test_comfyui_keys_are_exactly_those_that_its_loader_matches(folder):
    _, parameters = trained(folder, OTHER_SCALE)
    tensors, _ = comfyui_layout(grouped(folder, parameters, OTHER_SCALE), folder.name)
    expected = {f"diffusion_model.{place}.{suffix}" for place in PLACES[folder.name] for suffix in SUFFIXES}
    assert set(tensors) == expected


def as_comfyui_applies(tensors, place) -> torch.Tensor:
    """The change of one weight by the formula of ComfyUI's LoRA loader."""
    down, up, alpha = (tensors[f"diffusion_model.{place}.{suffix}"] for suffix in SUFFIXES)
    return alpha.item() / down.shape[0] * (up @ down)


ORDER = {
    "sd3": {
        "joint_blocks.0.x_block.attn.qkv": "transformer_blocks.0.attn: to_q to_k to_v",
        "joint_blocks.0.context_block.attn.qkv": "transformer_blocks.0.attn: add_q_proj add_k_proj add_v_proj",
        "joint_blocks.0.context_block.attn.proj": "transformer_blocks.0.attn: to_add_out",
        "joint_blocks.1.x_block.attn.proj": "transformer_blocks.1.attn: to_out.0",
    },
    "flux": {
        "double_blocks.0.img_attn.qkv": "transformer_blocks.0.attn: to_q to_k to_v",
        "double_blocks.0.txt_attn.qkv": "transformer_blocks.0.attn: add_q_proj add_k_proj add_v_proj",
        "double_blocks.0.img_attn.proj": "transformer_blocks.0.attn: to_out.0",
        "double_blocks.0.txt_attn.proj": "transformer_blocks.0.attn: to_add_out",
        "double_blocks.0.img_mlp.0": "transformer_blocks.0.ff: net.0.proj",
        "double_blocks.0.txt_mlp.2": "transformer_blocks.0.ff_context: net.2",
        "single_blocks.0.linear1_qkv": "single_transformer_blocks.0.attn: to_q to_k to_v",
    },
    "qwen-image": {"transformer_blocks.1.txt_mlp.net.2": "transformer_blocks.1.txt_mlp: net.2"},
}


def test_comfyui_weights_change_by_what_was_trained_row_by_row(folder):
    adapter, parameters = trained(folder, OTHER_SCALE)
    tensors, _ = comfyui_layout(grouped(folder, parameters, OTHER_SCALE), folder.name)
    layers = dict(adapter.transformer.named_modules())
    for place, held in ORDER[folder.name].items():
        parent, _, parts = held.partition(": ")
        rows = torch.cat([layers[f"{parent}.{part}"].get_delta_weight("policy") for part in parts.split()])
        torch.testing.assert_close(as_comfyui_applies(tensors, place), rows)


def test_every_family_has_names_for_comfyui():
    assert set(COMFYUI) == set(FAMILIES)


def test_metadata_names_every_module_once(folder):
    _, parameters = trained(folder, OTHER_SCALE)
    _, metadata = diffusers_layout(grouped(folder, parameters, OTHER_SCALE))
    described = json.loads(metadata["lora_adapter_metadata"])
    assert described["transformer.lora_alpha"] == 5.0
    assert 2 * len(described["transformer.target_modules"]) == len(parameters)
