"""`spotlight export` and `spotlight sample` of a run of every real family, against its own diffusers pipeline."""

import json
import shutil
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from command_line import spotlight
from family_models import GUIDANCE, SIZE, loaded, written
from PIL import Image
from recorded_run import record
from safetensors.torch import load_file
from test_drawing import TEXT, their_picture
from test_export_layouts import OTHER_SCALE, trained

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.random_weights import write_tiny
from spotlight.compute.train.lora import merged_state
from spotlight.compute.weights.store import NodeStore
from spotlight.config import load_config
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId
from spotlight.folder import RunFolder

STEPS = 4


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def base(request, tmp_path_factory) -> Path:
    return written(request.param, tmp_path_factory.mktemp(request.param) / request.param)


def made_run(path: Path, base: Path, parameters, lora) -> Path:
    """The folder of a run of this base that published these weights as its average."""
    path.mkdir()
    settings = load_config("words-nft").model_dump(mode="json")
    settings["model"]["name"] = str(base)
    settings["train"]["lora"] = None if lora is None else lora.model_dump(mode="json")
    settings["eval"] |= {"steps": STEPS, "guidance": GUIDANCE[base.name]}
    RunFolder(path).write_config(settings)
    weights = WeightsId(Version(3), Policy.AVERAGE)
    NodeStore(path / "weights").publish(weights, base.name, parameters, facts_of(str(base)).digest)
    record(path)
    return path


def pipeline_of(base: Path, **parts):
    pipeline = getattr(diffusers, FAMILIES[base.name].pipeline).from_pretrained(base, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def run_command(*arguments) -> None:
    outcome = spotlight(*arguments)
    assert outcome.code == 0, outcome.err


def sampled(run: Path, folder: Path, *more: str) -> tuple[np.ndarray, torch.Tensor]:
    """Picture and initial latents."""
    picture, latents = folder / "picture.png", folder / "latents.safetensors"
    size = ("--prompt", TEXT, "--seed", "7", "--size", str(SIZE), *more)
    run_command("sample", run, *size, "--to", picture, "--save-latents", latents)
    return np.asarray(Image.open(picture)), load_file(latents)["latents"]


def test_exported_lora_in_the_familys_pipeline_gives_the_sampled_picture_bit_for_bit(base, tmp_path):
    _, parameters = trained(base, OTHER_SCALE)
    run = made_run(tmp_path / "run", base, parameters, OTHER_SCALE)
    run_command("export", run, "--to", tmp_path / "lora")
    ours, latents = sampled(run, tmp_path)
    pipeline = pipeline_of(base)
    before = their_picture(pipeline, base.name, latents, STEPS, GUIDANCE[base.name])
    pipeline.load_lora_weights(tmp_path / "lora")
    assert np.array_equal(ours, their_picture(pipeline, base.name, latents, STEPS, GUIDANCE[base.name]))
    assert not np.array_equal(ours, before)
    pair = np.asarray(Image.open(_pair(run, tmp_path)))
    height, width, _ = ours.shape
    scale = (pair.shape[1] - 18) // 2 // width
    first = pair[24 : 24 + height * scale : scale, 6 : 6 + width * scale : scale]
    assert np.array_equal(first, before)


def _pair(run: Path, folder: Path) -> Path:
    size = ("--prompt", TEXT, "--seed", "7", "--size", str(SIZE))
    run_command("sample", run, *size, "--before-after", "--to", folder / "pair.png")
    return folder / "pair.png"


def test_card_of_a_lora_tells_how_to_load_it_in_both_programs(base, tmp_path):
    _, parameters = trained(base, OTHER_SCALE)
    run = made_run(tmp_path / "run", base, parameters, OTHER_SCALE)
    run_command("export", run, "--to", tmp_path / "lora")
    card = (tmp_path / "lora/README.md").read_text()
    assert f"from diffusers import {FAMILIES[base.name].pipeline}\n" in card
    assert "pipeline.load_lora_weights(" in card
    assert "`comfyui_lora.safetensors` to `models/loras`" in card
    assert "rank 3, alpha 5" in card
    assert f"base_model: {base.name}\n" in card
    assert str(tmp_path) not in card
    assert sorted(path.name for path in (tmp_path / "lora").glob("*lora*")) == [
        "comfyui_lora.safetensors",
        "pytorch_lora_weights.safetensors",
    ]


def test_merged_and_complete_export_is_a_model_whose_transformer_has_the_merged_weights(base, tmp_path):
    adapter, parameters = trained(base, OTHER_SCALE)
    run = made_run(tmp_path / "run", base, parameters, OTHER_SCALE)
    run_command("export", run, "--to", tmp_path / "whole", "--merged", "--complete")
    again = loaded(base.name, tmp_path / "whole").transformer.state_dict()
    expected = merged_state(adapter.transformer)
    assert again.keys() == expected.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


def test_run_without_lora_exports_its_transformer_which_draws_the_sampled_picture(base, tmp_path):
    changed = loaded(base.name, base).transformer
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    run = made_run(tmp_path / "run", base, dict(changed.named_parameters()), None)
    run_command("export", run, "--to", tmp_path / "whole")
    assert sorted(p.name for p in (tmp_path / "whole").iterdir() if p.is_dir()) == ["transformer"]
    transformer = getattr(diffusers, FAMILIES[base.name].transformer).from_pretrained(tmp_path / "whole/transformer")
    ours, latents = sampled(run, tmp_path)
    theirs = their_picture(pipeline_of(base, transformer=transformer), base.name, latents, STEPS, GUIDANCE[base.name])
    assert np.array_equal(ours, theirs)


def test_transformer_in_several_files_keeps_them_and_its_index(base, tmp_path):
    adapter, parameters = trained(base, OTHER_SCALE)
    split = Path(shutil.copytree(base, tmp_path / base.name))
    shutil.rmtree(split / "transformer")
    loaded(base.name, base).transformer.save_pretrained(split / "transformer", max_shard_size="200KB")
    assert len(list((split / "transformer").glob("*.safetensors"))) > 1
    run = made_run(tmp_path / "run", split, parameters, OTHER_SCALE)
    run_command("export", run, "--to", tmp_path / "whole", "--merged", "--complete")
    again = loaded(base.name, tmp_path / "whole").transformer.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in merged_state(adapter.transformer).items())
    index = json.loads(next((tmp_path / "whole/transformer").glob("*.index.json")).read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in again.values())


def test_adapters_of_another_rank_than_the_settings_are_refused(base, tmp_path):
    _, parameters = trained(base, OTHER_SCALE)
    lora = OTHER_SCALE.model_copy(update={"rank": 2})
    run = made_run(tmp_path / "run", base, parameters, lora)
    outcome = spotlight("export", run)
    assert outcome.code == 2
    assert "missing, unknown or of another shape" in outcome.err
    assert not (run / "export").exists()


def test_another_model_in_the_place_of_the_base_is_refused(base, tmp_path):
    _, parameters = trained(base, OTHER_SCALE)
    own = Path(shutil.copytree(base, tmp_path / base.name))
    run = made_run(tmp_path / "run", own, parameters, OTHER_SCALE)
    shutil.rmtree(own)
    write_tiny(FAMILIES[base.name], own, seed=1)
    outcome = spotlight("export", run)
    assert (outcome.code, "restore the original base weights" in outcome.err) == (2, True), outcome.err
