"""Bad input gets one clear sentence and exit code 2, and writes nothing."""

import tempfile
from pathlib import Path

import msgspec
import pytest
from command_line import spotlight, write_random_weights
from safetensors.torch import load_file

from spotlight.compute.models import families
from spotlight.compute.weights import files
from spotlight.config import load_config
from spotlight.core.errors import ConfigError, EnvironmentProblem, SizeError
from spotlight.core.types import Clause, Size

CUSTOM_REWARDS = """
import numpy as np
from spotlight.compute.rewards.protocol import Scores

class Constant:
    name, version = "custom", "1"
    def score(self, images, prompts):
        return self.scores(len(images))

class Nan(Constant):
    def scores(self, count):
        return Scores(total=np.array([1.0] * (count - 1) + [np.nan]))

class TooFew(Constant):
    def scores(self, count):
        return Scores(total=np.ones(count - 1))

class BadComponent(Constant):
    def scores(self, count):
        return Scores(total=np.ones(count), components={"part": np.full(count, np.inf)})

class Raising(Constant):
    def scores(self, count):
        return 1 / 0
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    return write_random_weights(tmp_path_factory.mktemp("weights") / "words.safetensors", "words")


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Run the command in an empty folder; returns its one sentence, or fails."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*arguments: str | Path, code: int = 2) -> str:
        outcome = spotlight(*arguments)
        assert outcome.code == code, outcome
        assert outcome.out == ""
        lines = outcome.err.strip().splitlines()
        assert len(lines) == 1, outcome.err
        assert lines[0].startswith("spotlight: ")
        assert lines[0].endswith((".", "?"))
        assert list(folder.iterdir()) == []
        return lines[0]

    return run


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('the word "abcdefghijklm"', ["has 13 tokens", "takes 1 to 7", "shorten it"]),
        (f'the word "{"x" * 5000}"', ["has 5000 tokens", "shorten it"]),
        ('the word "caf\u00e9"', ["contains '\u00e9'", "encoder lacks"]),
        ("a river", ["no word between two double quotes", 'the word "river"']),
        (" \n", ["holds no prompt", "one per line"]),
    ],
)
def test_prompts_the_encoder_cannot_take(refused, tmp_path, weights, text, parts):
    (tmp_path / "prompts.txt").write_text(f'the word "river"\n{text}\n' if text.strip() else text)
    sentence = refused("evaluate", weights, "--prompts", tmp_path / "prompts.txt", "--grid", "g.png")
    assert all(part in sentence for part in parts), sentence
    assert len(sentence) < 400


def test_prompt_files_that_cannot_be_read(refused, tmp_path, weights):
    assert "does not exist" in refused("evaluate", weights, "--prompts", "missing.txt")
    (tmp_path / "latin.txt").write_bytes('the word "caf\u00e9"'.encode("latin-1"))
    assert "not UTF-8" in refused("evaluate", weights, "--prompts", tmp_path / "latin.txt")
    (tmp_path / "bad.jsonl").write_text('\n{"tag": "colors", "include": [{"class": "dog"}], "prompt": "a dog"}\n')
    sentence = refused("evaluate", weights, "--prompts", tmp_path / "bad.jsonl")
    assert "bad.jsonl has 1 bad of 1 lines: line 2 (" in sentence
    assert "`count`" in sentence


def test_missing_and_truncated_weights(refused, tmp_path, weights):
    assert "missing.safetensors does not exist; check the path" in refused("evaluate", "missing.safetensors")
    for size in (0, 100, weights.stat().st_size // 2, weights.stat().st_size - 1):
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(weights.read_bytes()[:size])
        sentence = refused("evaluate", cut, "--grid", "g.png")
        assert f"({size} bytes)" in sentence
        assert "truncated" in sentence
        assert "download it again" in sentence


def test_altered_weights(refused, tmp_path, weights):
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    altered = tmp_path / "altered.safetensors"
    altered.write_bytes(content)
    sentence = refused("evaluate", altered)
    assert files.read(weights).digest in sentence
    assert "altered" in sentence


def test_weights_that_do_not_fit_their_family(refused, tmp_path, weights):
    tensors = load_file(weights)
    name = next(name for name, tensor in sorted(tensors.items()) if tensor.ndim == 2)
    files.write(tmp_path / "reshaped.safetensors", "words", {**tensors, name: tensors[name][:-1]})
    files.write(tmp_path / "partial.safetensors", "words", {k: t for k, t in tensors.items() if k != name})
    files.write(tmp_path / "foreign.safetensors", "wrods", tensors)
    for file in ("reshaped", "partial"):
        sentence = refused("evaluate", tmp_path / f"{file}.safetensors")
        assert "do not fit words: 1 tensors are" in sentence
        assert name in sentence
    assert "did you mean 'words'" in refused("evaluate", tmp_path / "foreign.safetensors")


def test_wrong_image_size(weights):
    adapter = families.load(str(weights))
    assert adapter.latent_shape(Size(32, 96)) == (48, 192)
    with pytest.raises(SizeError, match="at 32x96 only, not at 64x64; set the size to 32x96") as caught:
        adapter.latent_shape(Size(64, 64))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--reward", "ocr_gradd"], "there is no reward 'ocr_gradd': did you mean 'ocr_graded'?"),
        (["--reward", "nowhere:reward"], "'nowhere:reward' cannot be imported"),
        (["--prompts", "tset"], "no split 'tset': did you mean 'test'?"),
        (["--device", "cude"], "is 'cude', but devices are named cpu, cuda or cuda:N; did you mean 'cuda'?"),
        (["--grid", "no/such/folder/g.png"], "there is no folder no/such/folder"),
        (["--grid", "g.jpg"], "end it in .png"),
    ],
)
def test_options_of_evaluate(refused, weights, arguments, sentence):
    assert sentence in refused("evaluate", weights, *arguments)


def test_unknown_family(refused):
    for arguments in (("evaluate", "scnes"), ("pretrain", "scnes")):
        assert "did you mean 'scenes'?" in refused(*arguments)


def test_a_missing_gpu_is_an_environment_error(refused, weights):
    sentence = refused("evaluate", weights, "--device", "cuda:99", code=EnvironmentProblem.exit_code)
    assert "the device is 'cuda:99'" in sentence


@pytest.mark.parametrize(
    ("reward", "parts"),
    [
        ("Nan", ["returned nan for image 2 of 3", "advantages non-finite", "finite number"]),
        ("TooFew", ["an array of shape (2,) and type float64 for 3 images", "one number per image"]),
        ("BadComponent", ["component 'part'", "returned inf for image 0 of 3"]),
        (
            "Raising",
            ["raised ZeroDivisionError (division by zero)", "custom_rewards.py line 24; the whole traceback is"],
        ),
    ],
)
def test_rewards_that_misbehave(refused, tmp_path, monkeypatch, weights, reward, parts):
    (tmp_path / "custom_rewards.py").write_text(CUSTOM_REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sentence = refused(
        "evaluate", weights, "--reward", f"custom_rewards:{reward}", "--no-judge", "--count", "3", "--steps", "1",
        "--processes", "1", "--grid", "g.png",
    )  # fmt: skip
    assert f"'custom_rewards:{reward}'" in sentence
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("rolout.steps=4", ["'rolout', which does not exist", "did you mean 'rollout'?"]),
        ("rollout.group_sise=4", ["'rollout.group_sise', which does not exist", "did you mean 'group_size'?"]),
        ("train.lora.rnk=4", ["'train.lora.rnk'", "did you mean 'rank'?"]),
        ("algorithm.advantage.sdt=group", ["'algorithm.advantage.sdt'", "did you mean 'std'?"]),
        ("algorithm.btea=1", ["'algorithm.btea'", "did you mean 'beta'?"]),
        ("algorithm.kind=flow_gpro", ["loss 'flow_gpro', which does not exist", "did you mean 'flow_grpo'?"]),
        ("rollout.group_size=1", ["rollout.group_size is 1", "at least 2 samples to have a contrast", "raise it"]),
        ("rollout.steps=many", ["sets rollout.steps to 'many'", "valid integer", "rollout.steps=VALUE"]),
        ("train.lr=-1", ["sets train.lr to -1", "greater than 0"]),
        ("train.lr=.nan", ["sets train.lr to nan", "finite number"]),
        ("rollout.sampler=flow_sde", ["window_size is 0", "needs a window"]),
        ("rollout", ["'rollout' is not of the form section.key=value"]),
        ("=3", ["'=3' is not of the form section.key=value"]),
        ("rollout.=3", ["'rollout.=3' is not of the form"]),
        ("seed.x=3", ["'seed', which is the value 1, not a section", "write seed=VALUE"]),
        ("rollout.steps=[1", ["'rollout.steps=[1' is not YAML"]),
    ],
)
def test_impossible_settings_are_refused(override, parts):
    with pytest.raises(ConfigError) as caught:
        load_config("words-nft", ["seed=1", override])
    sentence = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in sentence
    assert all(part in sentence for part in parts), sentence


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rolout: {steps: 4}", r"mine.yaml' sets 'rolout', which does not exist: did you mean 'rollout'\?"),
        ("rollout: {group_sise: 4}", r"did you mean 'group_size'\?"),
        ("extends: words-ntf", r"there is no recipe 'words-ntf': did you mean 'words-nft'\?"),
        ("extends: gone.yaml", "gone.yaml does not exist; check the path"),
        ("extends: [a, b]", "extends one other"),
        ("extends: mine.yaml", r"extends itself \(mine -> mine\).*break the circle"),
        ("extends: other.yaml", r"extends itself \(mine -> other -> mine\)"),
        ("rollout: {steps: 4", "mine.yaml is not YAML .*line 1"),
        ("- rollout", "holds a list, not sections"),
    ],
)
def test_impossible_recipes_are_refused(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "other.yaml").write_text("extends: mine.yaml")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(str(tmp_path / "mine.yaml"))
    assert "\n" not in str(caught.value)


def test_unknown_recipe_is_suggested():
    with pytest.raises(ConfigError, match="there is no recipe 'word-nft': did you mean 'words-nft'"):
        load_config("word-nft")


def test_clauses_always_write_their_count():
    assert msgspec.to_builtins(Clause(class_name="dog", count=1)) == {"class": "dog", "count": 1}
    with pytest.raises(msgspec.ValidationError, match="count"):
        msgspec.convert({"class": "dog"}, Clause)
