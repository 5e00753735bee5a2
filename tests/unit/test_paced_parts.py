"""The parts of a paced run: its device, its judge, and its profile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from spotlight.compute.rewards import registry
from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError
from spotlight.core.types import Prompt, Version
from spotlight.core.work import WeightsId
from spotlight.node.paced import paced_files
from spotlight.node.paced.device import PacedDevice
from spotlight.node.paced.paced_reward import name_of
from spotlight.node.paced.paced_worker import PacedClock, PacedRole
from spotlight.node.paced.quicker import quicker
from spotlight.node.weight_cache import NearFiles
from spotlight.run import Run

WEIGHTS = WeightsId(Version(1))
WRITTEN = m.PublishedWeights(weights=WEIGHTS, digest="weights", size=1, step=1)


class WorkClock:
    """A clock that moves only by work or sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += seconds

    def work(self, name: str, seconds: float) -> str:
        self.now += seconds
        return name


def test_device_is_busy_for_the_seconds_of_what_was_done():
    clock = WorkClock()
    device = PacedDevice(clock.read, clock.move)
    assert device.take(lambda: clock.work("step", 0.1), lambda done: 2.0) == "step"
    assert clock.now == 2.0


def test_device_that_is_slower_than_the_profile_does_not_wait():
    clock = WorkClock()
    PacedDevice(clock.read, clock.move).take(lambda: clock.work("step", 3.0), lambda done: 2.0)
    assert clock.now == 3.0


def test_copy_to_a_node_takes_the_rest_of_the_profile_s_seconds(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(b"weights")
    waited: list[float] = []
    monkeypatch.setattr(paced_files.time, "sleep", waited.append)
    files, target = paced_files.PacedFiles(NearFiles(tmp_path / "run"), 7200.0), tmp_path / "copy"
    files.copy("weights", target, ())
    assert (target.read_bytes(), files.size("weights")) == (b"weights", 7)
    assert 0 < waited[0] < 7200.0


def test_device_used_by_two_threads_runs_one_operation_at_a_time():
    stepping, decoding = threading.Event(), threading.Event()
    overlapped: list[bool] = []

    def busy(seconds: float) -> None:
        """A step lasts long enough for the decoding to begin, if it could."""
        if seconds:
            overlapped.append(decoding.wait(0.2))

    device = PacedDevice(lambda: 0.0, busy)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(device.take, lambda: stepping.set(), lambda done: 2.0)
        assert stepping.wait(10)
        second = threads.submit(device.take, lambda: decoding.set(), lambda done: 0.0)
        first.result(10), second.result(10)
    assert decoding.is_set()
    assert overlapped == [False]


def test_device_is_free_again_after_work_that_raised():
    clock = WorkClock()
    device = PacedDevice(clock.read, clock.move)
    with pytest.raises(ZeroDivisionError):
        device.take(lambda: 1 / 0, lambda done: 1.0)
    assert device.take(lambda: "next", lambda done: 0.0) == "next"


@pytest.mark.parametrize(
    ("reply", "seconds"), [(WRITTEN, 3.0), (None, 0.0), (m.Failed(problem="the disk is full"), 3.0)]
)
def test_only_the_rank_that_writes_the_weights_takes_the_time_of_a_publication(reply, seconds):
    class Role:
        def obey(self, order):
            return reply

    class Pace:
        def publish(self):
            return 3.0

    clock = WorkClock()
    paced = PacedRole(Role(), PacedClock(device=PacedDevice(clock.read, clock.move), pace=Pace()))
    assert paced.obey(m.Publish(weights=(WEIGHTS,))) == reply
    assert clock.now == seconds


def test_quicker_profile_divides_every_figure_and_keeps_its_shape():
    profile = Profile.load("h200-qwen-image-512")
    fast = quicker(profile, 4.0)
    for operation in Operation:
        for degree in profile.degrees(operation):
            for batch in (1, 3, 64):
                assert fast.seconds(operation, batch, degree) == pytest.approx(
                    profile.seconds(operation, batch, degree) / 4.0
                )


def test_paced_reward_found_by_its_name_gives_each_picture_the_same_score_twice():
    reward = registry.create(name_of(0.0))
    draw = np.random.default_rng(0)
    images = [draw.integers(0, 255, (32, 96, 3), dtype=np.uint8) for _ in range(3)]
    prompts = [Prompt(text=f"word {number}") for number in range(3)]
    first, second = reward.score(images, prompts).total, reward.score(images, prompts).total
    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 3


def test_paced_run_of_an_unknown_profile_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'h200-qwen-image-512'"):
        load_config("words-nft", ["cluster.pace=h200-qwen-image-521"])


def test_paced_run_with_several_slots_per_node_is_refused():
    with pytest.raises(ConfigError, match="form no crews"):
        load_config("words-nft", ["cluster.pace=h200-qwen-image-512", "cluster.slots=2"])


def test_paced_run_with_a_gang_that_the_profile_lacks_is_refused_before_anything_is_written(tmp_path):
    settings = ("cluster.pace=h200-qwen-image-512", "cluster.reserved=3", "cluster.gang=3")
    config = load_config("words-nft", [*settings, f"output.folder={tmp_path}"])
    with pytest.raises(ConfigError, match="degree 3"):
        Run.start(config, "words-nft", PriceTable.load(None))
    assert not list(tmp_path.iterdir())
