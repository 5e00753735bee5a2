"""Rewards by name, path and entry point, and the processes that run them."""

import json
import os
import textwrap
from importlib.metadata import EntryPoint

import numpy as np
import pytest
from command_line import spotlight
from reward_children import reward_processes

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.config import BATCH
from spotlight.compute.rewards.reward_pool import RewardHung, RewardPool, RewardProcessDied
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt

REWARDS = """
import os
import time
import numpy as np
from spotlight.compute.rewards.protocol import Scores

class Brightness:
    name, version = "brightness", "1"
    def score(self, images, prompts):
        seen = {"process": os.getpid(), "threads": float(os.environ["OMP_NUM_THREADS"])}
        total = np.array([image.mean() + len(prompt.text) for image, prompt in zip(images, prompts)])
        return Scores(total=total, components={k: np.full(len(images), float(v)) for k, v in seen.items()})

class Dying(Brightness):
    def score(self, images, prompts):
        os._exit(9)

class Hanging(Brightness):
    def score(self, images, prompts):
        time.sleep(3600)

class Impatient(Brightness):
    def score(self, images, prompts):
        raise TimeoutError("no word from the far judge")

class NoFace(Exception):
    def __init__(self, where, count):
        super().__init__(f"found {count} faces in {where}")

class Picky(Brightness):
    def score(self, images, prompts):
        print("looking for faces")
        raise NoFace("the picture", 0)

class Leaving(Brightness):
    def score(self, images, prompts):
        raise SystemExit(0)

def nothing():
    return object()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A distribution on the path that registers one reward, as a third party's package would."""
    (tmp_path / "third_party.py").write_text(textwrap.dedent(REWARDS))
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINT_GROUP}]\nbrightness = third_party:Brightness\nbroken = gone:f\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def pictures(count: int) -> tuple[list[np.ndarray], list[Prompt]]:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(count)]
    return images, [Prompt(text="x" * (i % 7)) for i in range(count)]


def test_every_built_in_name_gives_a_reward_of_that_name():
    assert {"ocr", "ocr_graded", "ocr_judge", "geneval", "geneval_strict", "jpeg"} <= set(registry.names())
    model, server = {"source": "random-tiny:clip"}, {"url": "http://localhost/v1", "model": "seer"}
    options = {"clip": model, "pickscore": model, "ocr_endpoint": server, "rubric_endpoint": {**server, "rubric": "?"}}
    for name, path in registry.BUILT_IN.items():
        assert registry.required_options(name) == list(options.get(name, {}))
        reward = EntryPoint(name, path, "").load()(**options.get(name, {}))
        assert reward.name == name
        assert reward.version


def test_entry_points_are_rewards_by_name(installed):
    assert "brightness" in registry.names()
    assert registry.create("brightness").version == "1"
    assert type(registry.create("third_party:Brightness")) is type(registry.create("brightness"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ocr_gradd", "did you mean 'ocr_graded'"),
        ("third_party:Missing", "'third_party:Missing' cannot be imported .*package.module:function"),
        ("broken", "'broken' cannot be imported .ModuleNotFoundError: No module named 'gone'"),
        ("no_such_package:f", "No module named 'no_such_package'"),
        ("third_party:nothing", "returned a object without score"),
    ],
)
def test_object_that_is_not_a_reward_is_refused(installed, name, message):
    with pytest.raises(RewardError, match=message):
        registry.create(name)


def test_listing_of_rewards_goes_on_after_one_that_is_broken(installed):
    found = json.loads(spotlight("rewards", "--json").out)
    assert "cannot be imported" in found["broken"]["problem"]
    assert found["brightness"]["version"] == "1"
    assert "No module named 'gone'" in spotlight("rewards").out


def test_pool_scores_in_order_in_other_processes(installed, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    images, prompts = pictures(2 * BATCH + 5)
    progress = []
    with RewardPool(2) as pool:
        scores = pool.score("brightness", images, prompts, progress.append)
        assert pool.version("brightness") == "1"
    np.testing.assert_array_equal(scores.total, registry.create("brightness").score(images, prompts).total)
    assert os.getpid() not in scores.components["process"]
    assert set(scores.components["threads"]) == {1.0}
    assert progress == [BATCH, 2 * BATCH, 2 * BATCH + 5]


def test_pool_refuses_an_unequal_number_of_prompts():
    images, prompts = pictures(3)
    with RewardPool(1) as pool, pytest.raises(RewardError, match="3 images came with 2 prompts"):
        pool.score("jpeg", images, prompts[:2])


def test_a_reward_that_kills_its_process_is_named(installed):
    with RewardPool(1) as pool, pytest.raises(RewardError, match="'third_party:Dying' died"):
        pool.score("third_party:Dying", *pictures(1))


def test_a_reward_that_hangs_is_killed_and_named(installed):
    with (
        RewardPool(2, timeout_s=3.0) as pool,
        pytest.raises(RewardHung, match=r"'third_party:Hanging' gave no answer within 3 s.*reward.timeout_s"),
    ):
        pool.score("third_party:Hanging", *pictures(2 * BATCH))
    assert not reward_processes()


def test_a_reward_process_that_is_still_starting_when_its_time_is_up_is_killed_too(installed):
    with RewardPool(1, timeout_s=0.01) as pool, pytest.raises(RewardHung):
        pool.score("third_party:Hanging", *pictures(1))
    assert not reward_processes()


def test_a_reward_that_itself_ran_out_of_time_has_raised_and_does_not_hang(installed):
    with RewardPool(1) as pool:
        with pytest.raises(RewardError, match=r"raised TimeoutError .no word from the far judge"):
            pool.score("third_party:Impatient", *pictures(1))
        assert pool.version("brightness") == "1"


def test_jpeg_prefers_flat_pictures_to_noise():
    flat, noise = np.full((32, 96, 3), 90, np.uint8), np.random.default_rng(0).integers(0, 256, (32, 96, 3), np.uint8)
    scores = registry.create("jpeg").score([noise, flat], [Prompt(text="")] * 2).total
    assert scores[0] < scores[1] < 0.0


def test_exception_class_of_the_rewards_own_module_is_reported_with_its_text_and_its_traceback(installed):
    """The parent cannot import the class, so a pool that sent the exception itself would break."""
    with RewardPool(1) as pool, pytest.raises(RewardError, match=r"NoFace .found 0 faces in the picture") as refusal:
        pool.score("third_party:Picky", *pictures(1))
    assert not isinstance(refusal.value, RewardProcessDied)
    assert "third_party.py" in str(refusal.value.__cause__)


def test_reward_that_ends_its_process_by_sys_exit_is_an_error_and_ends_nothing_else(installed):
    with RewardPool(1) as pool:
        with pytest.raises(RewardError, match=r"raised SystemExit \(0\)"):
            pool.score("third_party:Leaving", *pictures(1))
        assert len(pool.score("brightness", *pictures(2)).total) == 2


def test_module_that_exits_when_it_is_imported_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with RewardPool(1) as pool, pytest.raises(RewardError, match=r"SystemExit: 0.*fix the error in that module\.$"):
        pool.version("exiting:f")


def test_output_of_a_reward_is_not_on_standard_output(installed, capfd):
    with RewardPool(1) as pool, pytest.raises(RewardError):
        pool.score("third_party:Picky", *pictures(1))
    printed = capfd.readouterr()
    assert "looking for faces" not in printed.out
    assert "looking for faces" in printed.err
