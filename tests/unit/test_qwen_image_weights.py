"""Qwen-Image's text encoder against the pipeline's, and the errors for missing or damaged weights."""

import json
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from diffusers import QwenImagePipeline
from safetensors.torch import load_file, save_file
from tiny_qwen_image import (
    empty_pipeline,
    qwen_scheduler,
    save_tiny_model,
    tiny_text_encoder,
    tiny_transformer,
    tiny_vae,
)
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.core.errors import PromptError, WeightsError
from spotlight.core.types import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("qwen-image"))


@pytest.fixture(scope="module")
def adapter(folder) -> QwenImageAdapter:
    return QwenImageAdapter.from_pretrained(str(folder), "cpu", torch.float32)


@pytest.fixture(scope="module")
def text_pipeline(folder) -> QwenImagePipeline:
    return empty_pipeline(
        text_encoder=Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, subfolder="text_encoder"),
        tokenizer=Qwen2Tokenizer.from_pretrained(folder, subfolder="tokenizer"),
    )


@pytest.mark.parametrize("text", ["a cat", 'a {brace} in "quotes" by the texture\'s image, 猫', ""])
def test_encode_is_the_pipelines(adapter, text_pipeline, text):
    neighbour = Prompt(text="a much longer neighbour of another shape and color")
    (encoded, _) = adapter.encode([Prompt(text=text), neighbour])
    with torch.no_grad():
        expected, mask = text_pipeline.encode_prompt(text, device=torch.device("cpu"))
    assert mask is None
    assert torch.equal(encoded.embeds, expected[0])
    assert not encoded.embeds.requires_grad
    # 34 tokens before the prompt are dropped; 5 of the template follow it.
    assert len(encoded.embeds) == len(text_pipeline.tokenizer(text).input_ids) + 5


def test_unconditional_is_one_space_and_outlives_the_text_encoder(folder, text_pipeline):
    encoder, tokenizer = text_pipeline.text_encoder, text_pipeline.tokenizer
    loads = []

    def load_text():
        copy = tiny_text_encoder(len(tokenizer))
        copy.load_state_dict(encoder.state_dict())
        loads.append(weakref.ref(copy))
        return empty_pipeline(text_encoder=copy, tokenizer=tokenizer)

    adapter = QwenImageAdapter(tiny_transformer(), tiny_vae(), qwen_scheduler(), load_text=load_text)
    assert not loads
    before = adapter.encode([Prompt(text="a cat")])[0]
    negative = adapter.unconditional()
    with torch.no_grad():
        expected, _ = text_pipeline.encode_prompt(" ", device=torch.device("cpu"))
    assert torch.equal(negative.embeds, expected[0])
    assert len(loads) == 1
    adapter.text.release()
    assert loads[0]() is None
    assert adapter.unconditional() is negative
    assert len(loads) == 1
    assert torch.equal(adapter.encode([Prompt(text="a cat")])[0].embeds, before.embeds)
    assert len(loads) == 2


def test_encode_of_a_prompt_that_is_too_long_is_refused(folder):
    adapter = QwenImageAdapter.from_pretrained(str(folder), "cpu", torch.float32, max_text_tokens=12)
    assert len(adapter.encode([Prompt(text=" image" * 7)])[0].embeds) == 12
    with pytest.raises(PromptError, match="13 tokens, more than the 12"):
        adapter.encode([Prompt(text=" image" * 8)])


def test_adapter_without_a_text_encoder_refuses_to_encode():
    adapter = QwenImageAdapter(tiny_transformer(), tiny_vae(), qwen_scheduler())
    with pytest.raises(WeightsError, match="load_text"):
        adapter.unconditional()


def test_adapter_of_a_transformer_and_a_vae_of_different_models_is_refused():
    with pytest.raises(WeightsError, match=r"16 channels .* 64"):
        QwenImageAdapter(tiny_transformer(in_channels=16), tiny_vae(), qwen_scheduler())


def test_folder_that_is_not_there_is_refused(tmp_path):
    missing = tmp_path / "nowhere"
    with pytest.raises(WeightsError, match=f"{missing}.* neither a folder nor a hub id"):
        QwenImageAdapter.from_pretrained(str(missing), "cpu")


@pytest.mark.parametrize("component", ["transformer", "vae", "scheduler", "text_encoder", "tokenizer"])
def test_component_that_is_not_there_is_refused(folder, tmp_path, component):
    broken = Path(shutil.copytree(folder, tmp_path / "model"))
    shutil.rmtree(broken / component)
    with pytest.raises(WeightsError, match=f"no '{component}'"):
        QwenImageAdapter.from_pretrained(str(broken), "cpu").unconditional()


@pytest.mark.parametrize(
    ("component", "file"),
    [
        ("transformer", "diffusion_pytorch_model.safetensors"),
        ("vae", "diffusion_pytorch_model.safetensors"),
        ("text_encoder", "model.safetensors"),
    ],
)
def test_weights_that_are_cut_short_or_lack_a_tensor_are_refused(folder, tmp_path, component, file):
    broken = Path(shutil.copytree(folder, tmp_path / "model"))
    path = broken / component / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match=f"'{component}' .* cannot be loaded"):
        QwenImageAdapter.from_pretrained(str(broken), "cpu").unconditional()
    path.write_bytes(whole)
    tensors = load_file(path)
    dropped = next(name for name in sorted(tensors) if name.endswith("weight"))
    save_file({k: v for k, v in tensors.items() if k != dropped}, path, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=f"lacks 1 tensors .*{dropped}"):
        QwenImageAdapter.from_pretrained(str(broken), "cpu").unconditional()


@pytest.mark.parametrize("component", ["transformer", "vae"])
def test_weights_with_an_extra_tensor_are_refused_in_one_sentence(folder, tmp_path, component):
    broken = Path(shutil.copytree(folder, tmp_path / "model"))
    path = broken / component / "diffusion_pytorch_model.safetensors"
    save_file({**load_file(path), "another.block.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"1 tensors too many \(first: another\.block\.weight\)") as caught:
        QwenImageAdapter.from_pretrained(str(broken), "cpu")
    message = str(caught.value)
    assert f"'{component}' of '{broken}'" in message
    assert message.endswith(".")
    assert ". " not in message


def test_weights_of_more_layers_than_the_config_has_are_refused(folder, tmp_path):
    """A config of fewer layers would otherwise run silently as a shallower model."""
    broken = Path(shutil.copytree(folder, tmp_path / "model"))
    config = broken / "transformer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_layers": 1}))
    with pytest.raises(WeightsError, match=r"too many \(first: transformer_blocks\.1\."):
        QwenImageAdapter.from_pretrained(str(broken), "cpu")
