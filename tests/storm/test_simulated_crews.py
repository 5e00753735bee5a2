"""Crews of simulated nodes follow the model of the run: its heads, and its tokens per picture."""

import pytest
from test_simulate import run

from spotlight.config import RunConfig, load_config
from spotlight.control.profiles import Profile
from spotlight.core.events import Crewing
from spotlight.sim.machine_settings import MachineSettings
from spotlight.sim.simulate import simulated

LARGE = Profile.load("h200-qwen-image-1280")
FEW = ("iterations=1", "rollout.prompts=2", "rollout.group_size=2", "eval.every=100", "eval.prompts=2")
QWEN = ("model.name=random:qwen-image", "reward.name=jpeg", "data.size=1280x1280")


def config(recipe: str, *changes: str) -> RunConfig:
    crews = ("cluster.slots=4", "cluster.elastic.degrees=[1,2,4]")
    return simulated(load_config(recipe, [*FEW, *crews, *changes]), LARGE)


def test_nodes_have_the_figures_of_the_model():
    qwen, words = (MachineSettings.of(each) for each in (config("qwen-image-ocr-512", *QWEN), config("words-nft")))
    assert (qwen.heads, qwen.token_pixels) == (24, 256)
    assert (words.heads, words.token_pixels) == (12, 64)


@pytest.mark.parametrize(
    ("recipe", "changes", "are_crews"), [("qwen-image-ocr-512", QWEN, True), ("words-nft", (), False)]
)
def test_idle_slots_share_large_pictures_and_no_small_ones(tmp_path, recipe, changes, are_crews):
    _, events = run(config(recipe, *changes), tmp_path / "run", LARGE)
    degrees = {len(crew) for event in events if isinstance(event, Crewing) for crew in event.crews}
    assert degrees <= {2, 4}
    assert bool(degrees) is are_crews
