"""Scoring in the calling process gives the pool's scores, and refuses what the pool refuses."""

import numpy as np
import pytest
from test_ocr import WORDS, ask, draw, misspell

from spotlight.compute.data import scenes
from spotlight.compute.rewards.config import RewardConfig
from spotlight.compute.rewards.in_process import InProcessScorer, scorer
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.core.errors import ConfigError, RewardError
from spotlight.core.types import Prompt


@pytest.fixture(scope="module")
def pool():
    with RewardPool(1) as pool:
        yield pool


def words():
    images = [draw(misspell(word, wrong)) for wrong in range(3) for word in WORDS]
    return "ocr_graded", images, [ask(word) for _ in range(3) for word in WORDS]


def drawn_scenes():
    rng = np.random.default_rng(0)
    prompts = scenes.prompts("test")[:20]
    images = [scenes.render(prompt, rng) for prompt in prompts]
    return "geneval", images, prompts[::-1]


@pytest.mark.parametrize("batch", [words, drawn_scenes])
def test_in_process_scores_equal_the_pools(pool, batch):
    name, images, prompts = batch()
    here = InProcessScorer()
    expected, found = pool.score(name, images, prompts), here.score(name, images, prompts)
    assert len(np.unique(expected.total)) > 3
    np.testing.assert_allclose(found.total, expected.total, atol=1e-6)
    assert found.components.keys() == expected.components.keys()
    assert here.version(name) == pool.version(name)


def test_every_image_is_scored_in_order_and_progress_is_reported():
    images = [np.full((4, 4, 3), index % 256, np.uint8) for index in range(1100)]
    progress = []
    scores = InProcessScorer().score(f"{__name__}:Brightness", images, [Prompt(text="x")] * 1100, progress.append)
    np.testing.assert_array_equal(scores.total, np.arange(1100) % 256)
    assert progress == sorted(progress)
    assert progress[-1] == 1100
    assert InProcessScorer().score(f"{__name__}:Brightness", [], []).total.shape == (0,)


def test_reward_that_can_use_a_device_receives_it():
    scores = InProcessScorer("cuda:3").score(f"{__name__}:Mobile", [np.zeros((4, 4, 3), np.uint8)], [Prompt(text="x")])
    assert scores.total == [3.0]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Failing", "raised ZeroDivisionError .*instead of returning scores"),
        ("Endless", "returned inf for image 0 of 1"),
    ],
)
def test_reward_that_fails_is_named(name, complaint):
    with pytest.raises(RewardError, match=f"{name}' {complaint}"):
        InProcessScorer().score(f"{__name__}:{name}", [np.zeros((4, 4, 3), np.uint8)], [Prompt(text="x")])


def test_image_without_a_prompt_is_refused():
    with pytest.raises(RewardError, match="1 images came with 0 prompts"):
        InProcessScorer().score("jpeg", [np.zeros((4, 4, 3), np.uint8)], [])


def test_no_reward_processes_means_this_process():
    with scorer(RewardConfig(processes=0), "cpu") as here, scorer(RewardConfig(processes=1), "cpu") as there:
        assert isinstance(here, InProcessScorer)
        assert isinstance(there, RewardPool)
    with pytest.raises(ConfigError, match=r"reward\.processes is 0"):
        RewardPool(0)


class Brightness:
    name, version = "brightness", "1"

    def score(self, images, prompts):
        return Scores(total=np.array([image.mean() for image in images]))


class Mobile(Brightness):
    def use_device(self, device):
        self.device = device

    def score(self, images, prompts):
        return Scores(total=np.full(len(images), float(self.device[-1])))


class Failing(Brightness):
    def score(self, images, prompts):
        raise ZeroDivisionError("no light")


class Endless(Brightness):
    def score(self, images, prompts):
        return Scores(total=np.full(len(images), np.inf))
