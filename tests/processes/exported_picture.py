"""The exported LoRA of a finished run in its family's own pipeline, against `spotlight sample`."""

from pathlib import Path

import diffusers
import numpy as np
from command_line import spotlight
from PIL import Image
from safetensors.torch import load_file

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.sources import base_of

TEXT = "a red boat on a lake"


def check_exported_picture(run: Path, family: str) -> None:
    """The pipeline with the LoRA makes, bit for bit, the picture that the run's model samples, and the base another."""
    folder = run.parent / "exported"
    for command in (
        ("export", run, "--to", folder),
        ("sample", run, "--prompt", TEXT, "--to", folder / "a.png", "--save-latents", folder / "x.safetensors"),
    ):
        outcome = spotlight(*command)
        assert outcome.code == 0, outcome.err
    pipeline = getattr(diffusers, FAMILIES[family].pipeline).from_pretrained(base_of(run).location)
    pipeline.set_progress_bar_config(disable=True)

    def picture() -> np.ndarray:
        scale = "true_cfg_scale" if family == "qwen-image" else "guidance_scale"
        latents = load_file(folder / "x.safetensors")["latents"]
        made = pipeline(TEXT, latents=latents, height=64, width=64, num_inference_steps=4, **{scale: 1.0})
        return np.asarray(made.images[0])

    assert f"base_model: random-tiny:{family}" in (folder / "README.md").read_text()
    before = picture()
    pipeline.load_lora_weights(folder)
    assert np.array_equal(np.asarray(Image.open(folder / "a.png")), after := picture())
    assert not np.array_equal(before, after)
