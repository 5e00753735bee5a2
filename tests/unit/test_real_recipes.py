"""Recipes of real models: sound settings, the right sizes, and refusals of what a family cannot do."""

import json
import shutil
import subprocess

import pytest
from command_line import spotlight
from recipe_groups import HUB_RECIPES, REAL_RECIPES
from tiny_qwen_image import save_tiny_model

from spotlight.compute.models import config as model_config
from spotlight.compute.models.encoder_process import CHECK
from spotlight.config import load_config, recipe_names
from spotlight.core.errors import PromptError
from spotlight.preflight import PlannedRun
from spotlight.preflight.inputs import check_prompts
from spotlight.surface.fleets import own_profile

SLOW = pytest.mark.slow


@pytest.mark.parametrize(("recipe", "family"), REAL_RECIPES.items(), ids=REAL_RECIPES)
def test_recipe_loads_with_the_released_size_of_its_family(recipe, family):
    assert recipe in recipe_names()
    config = load_config(recipe, [f"model.name=random:{family}"])
    assert config.train.lora is not None
    assert config.model.device == "cpu"


DRY_RUNS = [
    pytest.param(recipe, family, id=recipe, marks=() if recipe in ("qwen-image-ocr-512", "sd35-pickscore") else SLOW)
    for recipe, family in HUB_RECIPES.items()
]


@pytest.mark.parametrize(("recipe", "family"), DRY_RUNS)
def test_recipe_passes_a_dry_run(recipe, family, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight("train", recipe, "--model.name", f"random:{family}", "--reward.name", "jpeg", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["model"]["name"] == f"random:{family}"
    assert "reward jpeg" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_device_auto_is_the_gpu_of_a_machine_that_has_one(tmp_path, monkeypatch):
    driver = tmp_path / "nvidiactl"
    monkeypatch.setattr(model_config, "GPU_DRIVERS", (str(driver),))
    assert load_config("sd35-pickscore", ["model.name=random:sd3"]).model.device == "cpu"
    driver.touch()
    assert load_config("sd35-pickscore", ["model.name=random:sd3"]).model.device == "cuda"
    assert load_config("sd35-pickscore", ["model.name=random:sd3", "model.device=cpu"]).model.device == "cpu"


def test_forecast_takes_the_profile_of_the_nearest_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for size, profile in (("512x512", "h200-qwen-image-512"), ("1024x1024", "h200-qwen-image-1280")):
        overrides = ["model.name=random:qwen-image", "model.device=cuda", f"data.size={size}", "reward.name=jpeg"]
        assert own_profile(load_config("qwen-image-ocr-512", overrides)) == profile
    assert own_profile(load_config("qwen-image-ocr-512", ["model.name=random:qwen-image"])) is None


TRAIN = ("train", "sd35-pickscore", "--reward.name", "jpeg")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--model.name", "random-tiny:sd33"),
            "there is no model family 'sd33' in diffusers layout: did you mean 'sd3'",
        ),
        (("--model.name", "random:flux", "--model.dtype", "float16"), "but flux computes in bfloat16 or float32"),
        (("--model.name", "random:sd3", "--data.size", "500x512"), "the nearest size that can be made is 496x512"),
        (("--model.name", "random:sd3", "--data.prompts", "signz"), "nor a shipped set (signs, objects, pictures)"),
    ],
    ids=["family", "dtype", "size", "prompts"],
)
def test_settings_that_the_family_cannot_have_are_refused_before_anything_is_written(
    arguments, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight(*TRAIN, *arguments)
    assert outcome.code == 2, outcome
    assert sentence in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_full_fine_tuning_in_half_precision_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight(*TRAIN, "--model.name", "random:sd3", "--model.dtype", "bfloat16", "--set", "train.lora=null")
    assert outcome.code == 2
    assert "set train.lora.rank, or model.dtype to float32" in outcome.err


def test_reward_must_be_named_where_the_model_has_none_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = "model: {name: 'random:sd3'}\ndata: {prompts: signs, held_out: 0.1}\ntrain: {lora: {}}\n"
    (tmp_path / "r.yaml").write_text(recipe)
    outcome = spotlight("train", "r.yaml")
    assert outcome.code == 2
    assert "reward.name is not set, and sd3 has no reward of its own" in outcome.err


def test_prompt_that_is_longer_than_the_encoder_takes_is_refused_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("a boat\n" + "very " * 300 + "long\na lake\n")
    given = ("--model.name", "random:sd3", "--data.prompts", "mine.txt", "--data.held_out", "mine.txt")
    outcome = spotlight(*TRAIN, *given)
    assert outcome.code == 2, outcome
    assert "line 2: The prompt 'very very" in outcome.err
    assert "more than the 256 that can be encoded" in outcome.err
    assert not (tmp_path / "runs").exists()


def test_prompts_of_both_sets_are_checked_by_one_process(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("a boat\na lake\n")
    (tmp_path / "held.txt").write_text("rain\n" + "very " * 300 + "long\n")
    files = [f"data.{name}={tmp_path / file}" for name, file in (("prompts", "mine.txt"), ("held_out", "held.txt"))]
    config = load_config("sd35-pickscore", ["model.name=random:sd3", "reward.name=jpeg", *files])
    started, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **given: started.append(command) or run(command, **given))
    with pytest.raises(PromptError, match=r"1 of the 2 prompts of .*held.txt .* line 2: The prompt 'very very"):
        list(check_prompts(PlannedRun.new(config, "sd35-pickscore")))
    assert started == [CHECK]


def test_model_with_a_missing_component_is_refused_with_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = save_tiny_model(tmp_path / "model")
    shutil.rmtree(folder / "vae")
    outcome = spotlight(*TRAIN, "--model.name", str(folder))
    assert outcome.code == 2
    assert "has no 'vae', because that folder is missing" in outcome.err
