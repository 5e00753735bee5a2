"""A reward may be a plain function: distinguished from a factory by its parameters, versioned by its file, checked."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.answers import checked
from spotlight.compute.rewards.in_process import InProcessScorer
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt

MODULE = """
import functools
from spotlight.compute.rewards.protocol import Scores

def bright(images, prompts):
    return [float(image.mean()) + len(prompt.target) for image, prompt in zip(images, prompts)]

def scaled(images, prompts, scale=2.0, *, offset=0.0):
    return [scale + offset for _ in images]

def parts(images, prompts):
    return Scores(total=[1.0] * len(images), components={"part": [0.5] * len(images)})

class Factory:
    version = "7"
    def __init__(self, scale=1.0):
        self.scale = scale
    def score(self, images, prompts):
        return [self.scale] * len(images)

def made(scale=3.0):
    return Factory(scale)

half = functools.partial(scaled, scale=0.5)
wrapped = functools.lru_cache(made)
one = lambda images: 1
keyword = lambda images, *, prompts: 1
constant = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of rewards, which no other test may find imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "function_rewards.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("function_rewards", None)


def pictures(count: int) -> tuple[list[np.ndarray], list[Prompt]]:
    return [np.full((4, 4, 3), index, np.uint8) for index in range(count)], [Prompt(text="x", target="yz")] * count


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("bright", [2.0, 3.0, 4.0]),
        ("scaled", [2.0, 2.0, 2.0]),
        ("half", [0.5, 0.5, 0.5]),
        ("parts", [1.0, 1.0, 1.0]),
        ("Factory", [1.0, 1.0, 1.0]),
        ("made", [3.0, 3.0, 3.0]),
        ("wrapped", [3.0, 3.0, 3.0]),
    ],
)
def test_functions_and_factories_of_the_working_folder_score(folder, name, total):
    scores = InProcessScorer().score(f"function_rewards:{name}", *pictures(3))
    assert scores.total.tolist() == total
    assert set(scores.components) == ({"part"} if name == "parts" else set())


def test_reward_process_imports_from_the_working_folder(folder):
    with RewardPool(1) as pool:
        assert pool.score("function_rewards:bright", *pictures(2)).total.tolist() == [2.0, 3.0]


def test_reward_process_imports_from_the_reward_folder_wherever_it_works(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with registry.importing_from(str(folder)), RewardPool(1) as pool:
        assert pool.score("function_rewards:bright", *pictures(1)).total.tolist() == [2.0]
    with RewardPool(1) as pool, pytest.raises(RewardError, match=r"searched in .*elsewhere.*set reward.folder"):
        pool.score("function_rewards:bright", *pictures(1))


def test_file_of_the_working_folder_does_not_replace_a_library(folder):
    (folder / "numbers.py").write_text("def bright(images, prompts): return [1.0]\n")
    with pytest.raises(RewardError, match=r"module 'numbers' has no attribute 'bright'; .*lib.*numbers.py"):
        registry.create("numbers:bright")


def test_version_of_a_function_changes_with_its_file(folder):
    before = registry.create("function_rewards:bright").version
    assert registry.create("function_rewards:half").version == before
    (folder / "function_rewards.py").write_text(MODULE + "\n# another line\n")
    importlib.invalidate_caches()
    importlib.reload(sys.modules["function_rewards"])
    assert registry.create("function_rewards:bright").version != before


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one", r"has 1 parameters by position without a default \(images\), but a scoring function has two"),
        ("keyword", r"has 1 parameters by position without a default .*images.*options by keyword"),
        ("constant", "is a int, which cannot be called"),
        ("absent", "has no attribute 'absent'; .*function_rewards.py"),
    ],
)
def test_object_that_is_neither_function_nor_factory_is_refused_with_what_was_expected(folder, name, words):
    with pytest.raises(RewardError, match=words):
        registry.create(f"function_rewards:{name}")


@pytest.mark.parametrize("source", ["import no_such_module", "def broken(:", "1 / 0"])
def test_module_that_fails_to_import_is_refused_with_its_error(folder, source):
    (folder / "failing_rewards.py").write_text(source)
    with pytest.raises(RewardError, match=r"cannot be imported \((ModuleNotFound|Syntax|ZeroDivision)Error"):
        registry.create("failing_rewards:f")


@pytest.mark.parametrize(
    "answer",
    [
        [0.0, 1, True],
        (0.0, 1.0, 1.0),
        np.array([0, 1, 1]),
        np.array([0, 1, 1], np.float16),
        [np.float32(0), np.float64(1), np.int8(1)],
        torch.tensor([0.0, 1.0, 1.0], requires_grad=True),
        torch.tensor([0.0, 1.0, 1.0], dtype=torch.bfloat16),
        [torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1)],
    ],
)
def test_lists_arrays_and_tensors_of_numbers_are_scores(answer):
    assert checked("mine", answer, 3).total.tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("answer", "came"),
    [
        ([1.0, 2.0, 3.0], "a list of 3 numbers"),
        (["1"] * 8, "a list of 8 strings"),
        ([1.0] * 7 + [None], "a list of 8 None and numbers"),
        ([[1.0]] * 8, "a list of 8 lists"),
        ({"score": [1.0] * 8}, "a dict"),
        (dict.fromkeys(range(8), 1.0), "a dict"),
        ("11111111", "a str"),
        (1.0, "a float"),
        (None, "None"),
        ((number for number in range(8)), "a generator"),
        (np.ones((8, 1)), r"an array of shape \(8, 1\) and type float64"),
        (torch.ones(8, 3), r"an array of shape \(8, 3\) and type torch.float32"),
        (np.array(["1"] * 8), r"an array of shape \(8,\) and type <U1"),
        (Scores(total=[1.0] * 8, components={"part": [1.0]}), "a list of 1 number"),
    ],
)
def test_result_of_another_shape_or_type_is_refused_with_what_was_expected_and_returned(answer, came):
    with pytest.raises(
        RewardError, match=f"returned {came} for 8 images, but should return a list or array of 8 numbers"
    ):
        checked("mine", answer, 8)
