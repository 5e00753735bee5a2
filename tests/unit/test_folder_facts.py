"""Facts of a checkpoint in diffusers layout, read without torch, against the loaded model."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.folder_facts import read_folder
from spotlight.compute.models.random_weights import write_tiny
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.core.errors import WeightsError
from spotlight.core.types import Size


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request, tmp_path_factory):
    return write_tiny(FAMILIES[request.param], tmp_path_factory.mktemp(request.param))


def test_facts_are_those_of_the_loaded_model(folder):
    facts = read_folder(folder)
    adapter = facts.family.load_adapter_class().from_pretrained(str(folder), "cpu", torch.float32)
    size = Size(128, 64)
    assert facts.heads == adapter.heads
    assert (facts.geometry.tokens(size), facts.geometry.token_channels) == adapter.latent_shape(size)
    state = adapter.transformer.state_dict().values()
    assert facts.components["transformer"].parameters == sum(tensor.numel() for tensor in state)
    assert facts.components["transformer"].bytes == 4 * facts.components["transformer"].parameters
    assert set(facts.components) == {"transformer", "vae", *(p for p in facts.family.text if "encoder" in p)}
    assert all(part.bytes > 0 for part in facts.components.values())
    select_trainable(adapter.transformer, LoraConfig(rank=3, alpha=3.0), adapter.lora_targets, 0)
    trained = sum(p.numel() for p in adapter.transformer.parameters() if p.requires_grad)
    assert trained == 3 * facts.lora_edges


def test_facts_of_a_sharded_transformer_in_bf16_leave_its_variants_out(folder):
    before = read_folder(folder).components["transformer"]
    part = folder / "transformer"
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(part / f"{WEIGHTS}.safetensors").items()}
    names = sorted(tensors)
    shards = {f"{WEIGHTS}-00001-of-00002.safetensors": names[::2], f"{WEIGHTS}-00002-of-00002.safetensors": names[1::2]}
    for file, kept in shards.items():
        save_file({name: tensors[name] for name in kept}, part / file)
    save_file(tensors, part / f"{WEIGHTS}.fp16.safetensors")
    index = {"weight_map": {name: file for file, kept in shards.items() for name in kept}}
    (part / f"{WEIGHTS}.safetensors.index.json").write_text(json.dumps(index))
    after = read_folder(folder).components["transformer"]
    assert (after.parameters, after.bytes) == (before.parameters, before.bytes // 2)
    for file in (*shards, f"{WEIGHTS}.fp16.safetensors", f"{WEIGHTS}.safetensors.index.json"):
        (part / file).unlink()


WEIGHTS = "diffusion_pytorch_model"


def test_facts_of_pickled_weights_are_refused(folder):
    path = folder / "vae" / f"{WEIGHTS}.safetensors"
    path.rename(path.with_suffix(".bin"))
    with pytest.raises(WeightsError, match="no safetensors weights"):
        read_folder(folder)
    path.with_suffix(".bin").rename(path)


def test_reading_facts_never_loads_torch(folder):
    program = (
        "import sys; from pathlib import Path; from spotlight.compute.models.folder_facts import read_folder; "
        "read_folder(Path(sys.argv[1])); assert 'torch' not in sys.modules and 'diffusers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
