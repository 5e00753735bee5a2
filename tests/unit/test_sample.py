"""`spotlight sample`: pictures by prompt and seed, from a model and from a run beside its base."""

import json

import numpy as np
import pytest
from command_line import spotlight
from made_run import made_run
from PIL import Image
from safetensors.torch import load_file

from spotlight.compute.evaluation import generate
from spotlight.compute.models import families
from spotlight.compute.scores import EVALUATION_SEED
from spotlight.core.types import Prompt, Sampling
from spotlight.surface.contact_sheet import contact_sheet

TEXT = 'the word "river"'


def test_sheet_takes_any_label():
    picture = np.zeros((32, 96, 3), np.uint8)
    sheet = contact_sheet([picture] * 3, ["a\nb\x1b[2J", "\u202e \ud800", "word " * 5000], columns=3)
    assert sheet.height < 200


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return made_run(tmp_path_factory.mktemp("runs") / "first")


def drawn(path, *arguments) -> np.ndarray:
    outcome = spotlight("sample", *arguments, "--to", path)
    assert outcome.code == 0, outcome.err
    return np.asarray(Image.open(path))


def expected(model: str, seed: int, steps: int) -> np.ndarray:
    adapter = families.load(model)
    sampling = Sampling(steps=steps, size=adapter.native_size)
    return generate(adapter, [Prompt(text=TEXT)], sampling, EVALUATION_SEED, [seed], batch=1)[0]


def test_picture_is_that_of_its_identity(tmp_path, run):
    by_model = drawn(tmp_path / "a.png", "words", "--prompt", TEXT, "--seed", "3", "--steps", "4")
    assert np.array_equal(by_model, expected("words", 3, 4))
    by_run = drawn(tmp_path / "b.png", run.folder.path, "--prompt", TEXT, "--seed", "3", "--steps", "4")
    assert np.array_equal(by_run, expected(str(run.average), 3, 4))
    assert not np.array_equal(by_run, by_model)


def test_steps_of_a_run_are_those_of_its_evaluations(tmp_path, run):
    steps = run.folder.read_config()["eval"]["steps"]
    outcome = spotlight("sample", run.folder.path, "--prompt", TEXT, "--to", tmp_path / "a.png", "--json")
    found = json.loads(outcome.out)
    assert (found["steps"], found["guidance"], found["prompts"], found["seeds"]) == (steps, 1.0, [TEXT], [0])
    assert found["picture"] == str(tmp_path / "a.png")


def test_prompts_are_rows_seeds_are_columns_and_a_neighbour_changes_no_picture(tmp_path):
    one = drawn(tmp_path / "one.png", "words", "--prompt", TEXT, "--seed", "1", "--steps", "2")
    sheet = drawn(
        tmp_path / "sheet.png",
        *(
            "words",
            "--prompt",
            'the word "quartz"',
            "--prompt",
            TEXT,
            "--seed",
            "0",
            "--seed",
            "1",
            "--seed",
            "2",
            "--steps",
            "2",
        ),
    )
    scale = 3
    cell = (one.shape[0] * scale, one.shape[1] * scale)
    assert sheet.shape[1] > 3 * cell[1]
    assert sheet.shape[0] > 2 * cell[0]
    enlarged = one.repeat(scale, axis=0).repeat(scale, axis=1)
    right, below = sheet.shape[1] // 3, sheet.shape[0] // 2
    second_row = sheet[below:, right : 2 * right]
    found = np.lib.stride_tricks.sliding_window_view(second_row, enlarged.shape)
    assert any(np.array_equal(place, enlarged) for place in found.reshape(-1, *enlarged.shape))


def test_before_and_after_are_the_base_and_the_trained_picture_of_one_seed(tmp_path, run):
    pair = drawn(tmp_path / "pair.png", run.folder.path, "--prompt", TEXT, "--steps", "4", "--before-after")
    base, trained = (expected(model, 0, 4).repeat(3, 0).repeat(3, 1) for model in ("words", str(run.average)))
    height, width, _ = base.shape
    below = pair.shape[0] - height - 6
    assert np.array_equal(pair[below : below + height, 6 : 6 + width], base)
    assert np.array_equal(pair[below : below + height, 12 + width : 12 + 2 * width], trained)
    assert (pair[:below] < 128).any(), "a label is above the pictures"


def test_latents_are_saved_in_the_order_of_the_pictures(tmp_path):
    drawn(
        tmp_path / "a.png",
        *("words", "--prompt", TEXT, "--seed", "1", "--seed", "2", "--steps", "1"),
        *("--save-latents", tmp_path / "both.safetensors"),
    )
    drawn(
        tmp_path / "b.png",
        *("words", "--prompt", TEXT, "--seed", "2", "--steps", "1", "--save-latents", tmp_path / "two.safetensors"),
    )
    both, second = (load_file(tmp_path / f"{name}.safetensors")["latents"] for name in ("both", "two"))
    assert (both[1:] == second).all()
    assert not (both[0] == both[1]).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("words", "--prompt", TEXT, "--before-after"), "'words' is not a run"),
        (("words", "--prompt", TEXT, "--to", "a.jpg"), "end it in .png"),
        (("words", "--prompt", TEXT, "--to", "nowhere/a.png"), "there is no folder nowhere"),
        (("words", "--prompt", TEXT, "--save-latents", "a.pt"), "end it in .safetensors"),
        (("wrods", "--prompt", TEXT), "did you mean 'words'"),
        (("words", "--prompt", TEXT, "--size", "33x96"), "33x96"),
        (("words", "--prompt", "river", "--save-latents", "a.safetensors"), "no word between two double quotes"),
    ],
)
def test_bad_input_gets_one_sentence_and_no_file(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    outcome = spotlight("sample", *arguments)
    assert (outcome.code, sentence in outcome.err) == (2, True), outcome.err
    assert not list(tmp_path.iterdir())
