"""Model names: the result of a run is found, verified and whole, or refused with a sentence."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import spotlight, write_random_weights
from made_run import LORA, MadeRun, made_run
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_lora import velocity
from tiny_qwen_image import save_tiny_model

from spotlight.compute.models import families
from spotlight.compute.models.base_writer import write_base
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.results import read
from spotlight.compute.models.sources import PACED, SourceKind, resolve
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights import files
from spotlight.compute.weights.digest import digest
from spotlight.config import load_config
from spotlight.core.errors import InputError, WeightsError
from spotlight.folder import RunFolder


@pytest.fixture(scope="module", params=[(), LORA], ids=["all weights", "lora"])
def run(request, tmp_path_factory) -> MadeRun:
    return made_run(tmp_path_factory.mktemp("runs") / "first", *request.param)


@pytest.fixture
def copied(run, tmp_path, monkeypatch) -> MadeRun:
    """A copy that may be changed, in a folder of runs below the working folder."""
    monkeypatch.chdir(tmp_path)
    path = Path(shutil.copytree(run.folder.path, tmp_path / "runs" / "mine"))
    return MadeRun(RunFolder(path), run.trainer)


# --- every name of a result ---


def test_file_run_and_checkpoint_name_the_same_weights_and_behaviour_names_others(copied):
    names = [copied.average, "mine", "runs/mine", copied.folder.path, copied.checkpoint]
    found = {families.read_weights(str(name)).digest for name in names}
    assert len(found) == 1
    assert families.read_weights(str(copied.behaviour)).digest not in found


@pytest.mark.parametrize(("name", "which"), [("average", WeightSet.EMA), ("behaviour", WeightSet.OLD)])
def test_named_result_draws_what_the_trainer_draws_with_that_set(run, name, which):
    drawn = velocity(families.load(str(getattr(run, name))))
    with run.trainer.sets.using(which):
        # Merged adapters round differently from adapters beside the weights.
        atol = 1e-4 if run.trainer.train_config.lora else 0.0
        torch.testing.assert_close(drawn, velocity(run.trainer.adapter), rtol=0, atol=atol)
    assert (drawn - velocity(families.load("words"))).abs().max() > 1e-2


def test_facts_of_every_name_are_known_without_torch(copied):
    names = [str(copied.average), "mine", str(copied.checkpoint), "words"]
    outcome = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\nfrom spotlight.compute.models.catalogue import facts_of\n"
            f"print([facts_of(name).family for name in {names!r}], 'torch' in sys.modules)",
        ],
        check=True, capture_output=True, text=True, cwd=Path.cwd(),
    )  # fmt: skip
    assert outcome.stdout.strip() == f"{['words'] * 4} False"


def test_digest_in_the_facts_differs_for_sets_and_checkpoints_of_other_weights(run, tmp_path):
    other = made_run(tmp_path / "other", "train.lora.rank=3")
    results = (run.average, run.behaviour, run.checkpoint, other.average, other.checkpoint)
    assert len({facts_of(str(path)).digest for path in results}) == len(results)


def test_config_takes_a_run_as_its_model_and_an_unknown_name_is_refused_before_anything_starts(copied):
    assert load_config("words-nft", ["model.name=mine"]).model.name == "mine"
    with pytest.raises(InputError, match=r"'mien' is neither .* did you mean 'mine'"):
        load_config("words-nft", ["model.name=mien"])
    with pytest.raises(InputError, match="'Qwen/Qwen-Image' is neither in the hub's cache nor can it be fetched"):
        load_config("words-nft", ["model.name=Qwen/Qwen-Image"])


def test_older_set_that_its_run_has_deleted_is_refused_with_the_kept_ones(copied):
    with pytest.raises(WeightsError, match=r"average-0\.safetensors does not exist, and its run keeps average-1"):
        resolve(str(copied.average.with_name("average-0.safetensors")))
    with pytest.raises(InputError, match=r"no checkpoint .*step_000009, and its run keeps step_000002"):
        resolve(str(copied.checkpoint.with_name("step_000009")))


def test_set_that_its_run_deletes_while_it_is_read_is_refused_like_a_missing_one(copied):
    source = resolve("mine")
    copied.average.unlink()
    with pytest.raises(WeightsError, match=r"average-1\.safetensors does not exist"):
        read(source)


def test_run_without_averaged_weights_is_refused_with_the_sets_it_has(copied):
    copied.average.unlink()
    with pytest.raises(InputError, match=r"no averaged weights yet \(it has step_000002\)"):
        resolve("mine")


def test_newest_average_is_by_number_and_not_by_name(copied):
    for version in (9, 10):
        shutil.copy(copied.average, copied.average.with_name(f"average-{version}.safetensors"))
    assert resolve("mine").path.name == "average-10.safetensors"


# --- altered, of another base, of nothing ---


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_altered_set_and_altered_checkpoint_are_refused(copied):
    """Each is refused by the check of its own kind, whichever byte is altered."""
    for place in (-1, -4097):
        flip(copied.average, place)
        with pytest.raises(WeightsError, match=r"have fingerprint .* so it was altered"):
            families.read_weights("mine")
    (file,) = copied.checkpoint.glob("*.safetensors")
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    index = json.loads((copied.checkpoint / "checkpoint.json").read_text())
    name = next(name for name in index["tensors"] if name.startswith("ema."))
    start, _ = json.loads(file.read_bytes()[8:header])[name]["data_offsets"]
    flip(file, header + start)
    with pytest.raises(WeightsError, match=f"{name} in 00000.safetensors was altered.*; name another one"):
        families.read_weights(str(copied.checkpoint))


def test_set_whose_fingerprint_is_written_as_a_digest_is_no_weights_file(copied):
    """Published by an earlier version: used as it is, and refused if altered."""
    with safe_open(copied.average, framework="pt") as file:
        metadata = file.metadata()
    metadata["digest"] = metadata.pop("fingerprint")
    expected = families.read_weights("mine").digest
    save_file(load_file(copied.average), copied.average, metadata)
    assert families.read_weights("mine").digest == expected
    flip(copied.average)
    with pytest.raises(WeightsError, match="so it was altered"):
        families.read_weights("mine")


def test_published_set_is_refused_where_only_a_weights_file_will_do(run):
    with pytest.raises(WeightsError, match="is the set average-1 of a run, not a weights file"):
        files.read(run.average)


def test_paced_run_has_no_model(copied):
    with safe_open(copied.average, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(copied.average), copied.average, metadata | {"base_digest": f"{PACED}x"})
    with pytest.raises(WeightsError, match="workers wait instead of computing"):
        resolve("mine")


@pytest.fixture(scope="module")
def first_adapters(tmp_path_factory) -> MadeRun:
    """A LoRA run that began from a weights file, so that it has a copy of it."""
    folder = tmp_path_factory.mktemp("adapters")
    base = write_random_weights(folder / "base.safetensors", "words")
    return made_run(folder / "runs" / "first", *LORA, base=str(base))


@pytest.fixture
def adapters(first_adapters, tmp_path, monkeypatch) -> MadeRun:
    """A copy of it that may be changed, in a folder of runs below the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(Path(shutil.copytree(first_adapters.folder.path, tmp_path / "runs" / "mine")))
    # With the path of its own base.
    folder.write_config(folder.read_config())
    return MadeRun(folder, first_adapters.trainer)


def test_adapters_are_merged_into_the_copy_that_their_run_began_from(adapters):
    drawn = velocity(families.load("mine"))
    with adapters.trainer.sets.using(WeightSet.EMA):
        torch.testing.assert_close(drawn, velocity(adapters.trainer.adapter), rtol=0, atol=1e-4)
    moved = shutil.move(adapters.folder.path, Path("elsewhere"))
    assert torch.equal(velocity(families.load(str(moved))), drawn)


@pytest.mark.parametrize("name", ["average", "checkpoint"])
def test_adapters_whose_base_differs_or_is_gone_are_refused(adapters, name, tmp_path):
    path = str(getattr(adapters, name))
    first = files.read(adapters.folder.base)
    files.write(adapters.folder.base, "words", {**first.weights, "proj_out.bias": first.weights["proj_out.bias"] + 1})
    with pytest.raises(WeightsError, match=f"adapters of base weights {first.digest}, but those of its run .* are "):
        families.read_weights(path)
    adapters.folder.base.unlink()
    with pytest.raises(WeightsError, match=r"mine has lost its base\.safetensors"):
        families.read_weights(path)


def test_adapters_without_the_settings_of_their_run_are_refused(adapters, tmp_path):
    alone = tmp_path / "alone" / "weights" / "average-1.safetensors"
    alone.parent.mkdir(parents=True)
    shutil.copy(adapters.average, alone)
    with pytest.raises(WeightsError, match=r"settings of the run .*alone cannot be read .* restore its config\.json"):
        families.read_weights(str(alone))
    settings = adapters.folder.read_config()
    for lora, problem in (({"rank": 3, "alpha": 6.0}, "do not fit the .* of rank 3"), (None, "no valid train.lora")):
        adapters.folder.write_config({**settings, "train": {**settings["train"], "lora": lora}})
        with pytest.raises(WeightsError, match=problem):
            families.read_weights("mine")


def test_run_that_names_its_own_adapters_as_its_base_is_refused(adapters):
    adapters.folder.base.unlink()
    settings = adapters.folder.read_config()
    adapters.folder.write_config({**settings, "model": {**settings["model"], "name": str(adapters.average)}})
    with pytest.raises(WeightsError, match=r"is neither a weights file .* so its adapters have no base"):
        families.read_weights("mine")


# --- a new run from a result ---


def test_copy_for_a_new_run_is_a_weights_file_of_the_same_weights_and_names_their_origin(copied, tmp_path):
    written = write_base("mine", tmp_path / "new" / "base.safetensors")
    content = files.read(tmp_path / "new" / "base.safetensors")
    assert content.digest == written == families.read_weights(str(copied.checkpoint)).digest
    assert facts_of(str(tmp_path / "new" / "base.safetensors")).digest == digest(content.weights)
    with safe_open(tmp_path / "new" / "base.safetensors", framework="pt") as file:
        assert file.metadata()["origin"] == str(copied.average)


def test_settings_of_a_moved_run_name_its_own_copy_where_it_is_now(adapters):
    moved = RunFolder(Path(shutil.move(adapters.folder.path, Path("runs") / "moved")))
    assert moved.read_config()["model"]["name"] == str(moved.base)


@pytest.mark.parametrize("run", [LORA], ids=["lora"], indirect=True)
def test_new_run_from_altered_weights_is_refused_and_leaves_no_folder(copied):
    flip(copied.average)
    outcome = spotlight("train", "words-nft", "--model.name", "mine", "--output.name", "new")
    assert outcome.code == 2
    assert "so it was altered" in outcome.err
    assert not Path("runs/new").exists()


# --- models in diffusers layout ---


@pytest.mark.parametrize(
    ("pipeline", "transformer"),
    [
        ("WanPipeline", "WanTransformer3DModel"),
        ("QwenImageEditPipeline", "QwenImageTransformer2DModel"),
        (None, "Flux2Transformer2DModel"),
    ],
)
def test_evaluate_of_another_family_in_diffusers_layout_names_it_and_those_that_are_supported(
    tmp_path, pipeline, transformer
):
    folder = save_tiny_model(tmp_path / "model")
    config = folder / "transformer" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "_class_name": transformer}))
    if pipeline is None:
        (folder / "model_index.json").unlink()
    else:
        (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    (tmp_path / "mine.txt").write_text("a red boat\n")
    outcome = spotlight("evaluate", folder, "--prompts", tmp_path / "mine.txt", "--reward", "jpeg")
    assert outcome.code == 2
    assert f"is a {pipeline or transformer}, which is not supported" in outcome.err
    assert all(f"({family})" in outcome.err for family in ("sd3", "flux", "qwen-image"))
    assert len(outcome.err.strip().splitlines()) == 1


def test_folder_in_diffusers_layout_is_no_run(tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)).kind is SourceKind.DIFFUSERS


def test_digest_of_a_model_in_diffusers_layout_changes_with_any_component(tmp_path):
    folder = save_tiny_model(tmp_path / "model")
    found = facts_of(str(folder))
    assert facts_of(str(shutil.copytree(folder, tmp_path / "copy"))).digest == found.digest
    for component in ("transformer", "text_encoder"):
        path = next((folder / component).glob("*.safetensors"))
        tensors = load_file(path)
        name = max(tensors, key=lambda name: tensors[name].numel())
        save_file({**tensors, name: tensors[name] + 1}, path, {"format": "pt"})
        changed = facts_of(str(folder))
        assert changed.digest != found.digest
        assert (changed.text_digest == found.text_digest) is (component == "transformer")
        found = changed


def test_settings_of_a_moved_run_name_its_own_model_folder_where_it_is_now(tmp_path):
    run = RunFolder(tmp_path / "before")
    save_tiny_model(run.base_folder)
    run.write_config({"iterations": 1, "model": {"name": str(run.base_folder)}})
    moved = RunFolder(Path(shutil.move(run.path, tmp_path / "after")))
    assert moved.read_config()["model"]["name"] == str(moved.base_folder)
