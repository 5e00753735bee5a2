"""Pictures of `compute/drawing.py` are those of the family's own diffusers pipeline, with and without a LoRA."""

import numpy as np
import pytest
import torch
from family_models import GUIDANCE, SIZE, family_model, loaded, written
from safetensors.torch import save_file
from test_export_layouts import POWER_OF_TWO, grouped, trained

from spotlight.compute.drawing import default_guidance, default_steps, draw, pipeline_latents
from spotlight.compute.export.lora_layouts import diffusers_layout
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.core.types import Prompt, Sampling

TEXT = 'a red boat on the sea, "HARBOUR" on its sail'


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def folder(request, tmp_path_factory):
    return written(request.param, tmp_path_factory.mktemp(request.param) / request.param)


def their_picture(pipeline, family: str, latents: torch.Tensor, steps: int, guidance: float) -> np.ndarray:
    """The documented call: the prompt as text, everything else at its default."""
    scale = {"guidance_scale": guidance}
    if family == "qwen-image":
        scale = {"true_cfg_scale": guidance, "negative_prompt": " "} if guidance > 1 else {"true_cfg_scale": 1.0}
    height, width = SIZE.height, SIZE.width
    made = pipeline(TEXT, latents=latents, height=height, width=width, num_inference_steps=steps, **scale)
    return np.asarray(made.images[0])


@pytest.mark.parametrize("guided", [True, False], ids=["guided", "unguided"])
def test_picture_with_the_exported_lora_is_the_pipelines_bit_for_bit(folder, tmp_path, guided):
    adapter, parameters = trained(folder, POWER_OF_TWO)
    tensors, metadata = diffusers_layout(grouped(folder, parameters, POWER_OF_TWO))
    save_file(tensors, tmp_path / "pytorch_lora_weights.safetensors", metadata=metadata)
    sampling = Sampling(steps=6, size=SIZE, guidance=GUIDANCE[folder.name] if guided else 1.0)
    pairs = [(Prompt(text="a cat"), 5), (Prompt(text=TEXT), 7)]
    ours = draw(adapter, pairs, sampling)
    model = family_model(folder.name, folder)
    latents = pipeline_latents(adapter, pairs, sampling)[1:]
    before = their_picture(model.pipeline, folder.name, latents, 6, sampling.guidance)
    model.pipeline.load_lora_weights(tmp_path)
    after = their_picture(model.pipeline, folder.name, latents, 6, sampling.guidance)
    assert np.array_equal(ours[1], after)
    assert not np.array_equal(after, before)
    assert np.array_equal(draw(adapter, pairs[1:], sampling)[0], after)


def test_defaults_are_the_pipelines(folder):
    found = (default_steps(adapter := loaded(folder.name, folder)), default_guidance(adapter))
    assert found == {"sd3": (28, 7.0), "flux": (28, 3.5), "qwen-image": (50, 4.0)}[folder.name]
