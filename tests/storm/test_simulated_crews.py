"""Crews of simulated nodes: they follow the model of the run, regroup after losses, and the report shows them."""

import pytest
from shown_panels import shown
from test_simulate import run

from spotlight.config import RunConfig, load_config
from spotlight.control.profiles import Operation, Profile
from spotlight.core.errors import ConfigError
from spotlight.core.events import AnyEvent, Crewing, NodeLost, WorkerJoined
from spotlight.core.journal import read
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.simulate import check, simulated
from spotlight.surface.projections import RunView

LARGE = Profile.load("h200-qwen-image-1280")
FEW = ("iterations=1", "rollout.prompts=2", "rollout.group_size=2", "eval.every=100", "eval.prompts=2")
QWEN = ("model.name=random:qwen-image", "reward.name=jpeg", "data.size=1280x1280")


def config(recipe: str, *changes: str) -> RunConfig:
    crews = ("cluster.slots=4", "cluster.elastic.degrees=[1,2,4]")
    return simulated(load_config(recipe, [*FEW, *crews, *changes]), LARGE)


def test_nodes_have_the_figures_of_the_model():
    qwen, words = (SimMachineSettings.of(each) for each in (config("qwen-image-ocr-512", *QWEN), config("words-nft")))
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


EIGHT = (
    *("cluster.slots=8", "cluster.spot=2", "cluster.gang=4", "market.trace=bulk", "market.start_h=2.23"),
    *("iterations=6", "rollout.prompts=4", "rollout.group_size=8", "rollout.steps=40", "eval.every=100"),
)
"""Of two spot nodes one is lost after 174 s, after a notice of 120 s."""


@pytest.fixture(scope="module")
def eight_slots(tmp_path_factory):
    settings = simulated(load_config("qwen-image-ocr-512", [*QWEN, *EIGHT]), LARGE)
    folder = tmp_path_factory.mktemp("eight") / "run"
    _, events = run(settings, folder, LARGE)
    return events, RunView.of(read(folder / "journal"))


def degrees(events: list[AnyEvent], node: str) -> set[int]:
    return {len(crew) for event in events if isinstance(event, Crewing) and event.node == node for crew in event.crews}


def test_spot_slots_form_crews_of_timed_degrees_and_regroup_after_the_loss_of_a_node(eight_slots):
    events, _ = eight_slots
    (lost,) = (number for number, event in enumerate(events) if isinstance(event, NodeLost))
    assert events[lost].node == "spot-2.1"
    assert sum(isinstance(event, WorkerJoined) for event in events) == 24
    assert 2 in degrees(events[:lost], "spot-1.1") | degrees(events[:lost], "spot-2.1")
    assert degrees(events[lost:], "spot-1.1") == {2, 4}
    assert degrees(events, "reserved-1.1") <= {2, 4}


def test_regroup_costs_the_seconds_of_the_profile(eight_slots):
    _, view = eight_slots
    connect_s = LARGE.seconds(Operation.REGROUP)
    quickest = min(one.seconds for one in view.crews.regroups)
    assert quickest == pytest.approx(connect_s, abs=1e-6), "members at a boundary only have to connect"


def test_report_shows_degrees_and_regroups(eight_slots):
    _, view = eight_slots
    page = shown(view, "crews")
    assert f"formed in {len(view.crews.regroups)} regroups" in page
    assert all(f"in crews of {degree}" in page for degree in (2, 4))
    assert page.count('class="regroup"') > 5
    assert page.count("<tr><th scope") > 5


def test_degrees_without_times_are_left_out_and_refused_if_they_are_named():
    auto = load_config("words-nft", ["cluster.slots=8", "cluster.elastic.max_degree=4"])
    assert simulated(auto, LARGE).cluster.elastic.degrees == (1, 2, 4)
    named = load_config("words-nft", ["cluster.slots=4", "cluster.elastic.degrees=[1,3]"])
    with pytest.raises(ConfigError, match=r"degrees has 3, but the profile .* crews of 1, 2, 4, 8 slots"):
        check(simulated(named, LARGE), LARGE, "story")
