"""Several rewards in a recipe: their settings, their options, and the score that they make together."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.combination import Verdict, combined
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.in_process import InProcessScorer
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.config import load_config
from spotlight.core.errors import ConfigError, RewardError
from spotlight.core.messages import Score
from spotlight.core.types import Prompt
from spotlight.folder import check_unchanged

MODULE = """
class Scaled:
    version = "1"
    def __init__(self, *, scale: float, offset: float = 0.0):
        self.scale, self.offset = scale, offset
    def score(self, images, prompts):
        return [self.scale * float(image.mean()) + self.offset for image in images]

def above(images, prompts, *, limit, step=1.0):
    return [step * float(image.mean() > limit) for image in images]

def anything(**options):
    return Scaled(scale=options["scale"])
"""
PICTURES = [np.full((4, 4, 3), value, np.uint8) for value in (10, 20)], [Prompt(text="x")] * 2


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "term_rewards.py").write_text(MODULE)
    yield
    sys.modules.pop("term_rewards", None)


def config(*overrides: str):
    return load_config("words-nft", overrides)


@pytest.mark.parametrize(
    ("name", "options", "total"),
    [
        ("Scaled", {"scale": 2}, [20.0, 40.0]),
        ("Scaled", {"scale": 2, "offset": 0.5}, [20.5, 40.5]),
        ("above", {"limit": 15}, [0.0, 1.0]),
        ("above", {"limit": 15, "step": 0.5}, [0.0, 0.5]),
        ("anything", {"scale": 3}, [30.0, 60.0]),
    ],
)
def test_options_are_passed_to_factories_and_functions_by_keyword(module, name, options, total):
    term = Term(name=f"term_rewards:{name}", options=options)
    assert InProcessScorer().score(term, *PICTURES).total.tolist() == total


def test_options_reach_the_reward_process_and_rewards_of_one_name_do_not_mix(module):
    with RewardPool(1) as pool:
        totals = [
            pool.score(Term(name="term_rewards:Scaled", options={"scale": scale}), *PICTURES).total.tolist()
            for scale in (1, 2, 1)
        ]
    assert totals == [[10.0, 20.0], [20.0, 40.0], [10.0, 20.0]]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("Scaled", {"scal": 2}, "does not take the option 'scal': did you mean 'scale'"),
        ("Scaled", {"offset": 2}, "needs the option 'scale', which is not set; set it in reward.options"),
        ("above", {"limit": 1, "images": 2}, "does not take the option 'images'"),
        ("above", {}, "needs the option 'limit'"),
    ],
)
def test_option_that_is_unknown_or_missing_is_refused_with_its_name(module, name, options, words):
    with pytest.raises(RewardError, match=words):
        registry.create(f"term_rewards:{name}", options)


def test_reward_without_options_says_so():
    with pytest.raises(RewardError, match="'jpeg' does not take the option 'quality': it takes none"):
        registry.create("jpeg", {"quality": 90})


def test_reward_that_computes_on_the_cpu_only_refuses_another_device():
    with (
        RewardPool(1) as pool,
        pytest.raises(RewardError, match="'jpeg' has the device cuda, but it computes on the CPU"),
    ):
        pool.version(Term(name="jpeg", device="cuda"))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("reward.name=jpeg", "reward.terms=[{name: ocr}]"), "reward.name and reward.terms are both set"),
        (("reward.options={a: 1}", "reward.terms=[{name: ocr}]"), "reward.options and reward.terms are both set"),
        (("reward.combine=gdpo",), "reward.combine is gdpo but reward.terms is empty"),
        (("reward.terms=[{name: ocr, weight: 0}]",), "all 1 weights of reward.terms are 0"),
        (("reward.terms=[{name: ocrr}]",), "there is no reward 'ocrr': did you mean 'ocr'"),
        (("reward.terms=[{name: ocr, wieght: 2}]",), "'reward.terms.0.wieght', which does not exist: .*'weight'"),
        (("reward.name=jpeg", "reward.options={api_key: x}"), "'api_key' of a reward looks like a secret"),
        (("reward.terms=[{name: ocr, options: {token: x}}]",), "'token' of a reward looks like a secret"),
        (("reward.terms=[{name: ocr, options: {a: [1]}}]",), r"reward.terms.0.options.a"),
    ],
)
def test_impossible_reward_settings_are_refused_before_anything_is_loaded(overrides, words):
    with pytest.raises((ConfigError, RewardError), match=words):
        config(*overrides)


@pytest.mark.parametrize(
    ("overrides", "names", "options"),
    [
        (("reward.name=ocr",), ["ocr"], [{}]),
        (("reward.name=ocr", "reward.options={b: 2}"), ["ocr"], [{"b": 2}]),
        (("reward.options={b: 2}",), ["jpeg"], [{"a": 1, "b": 2}]),
        (("reward.terms=[{name: ocr}, {name: geneval}]", "reward.combine=gdpo"), ["ocr", "geneval"], [{}, {}]),
        (("reward.processes=5",), ["jpeg"], [{"a": 1}]),
    ],
)
def test_reward_of_a_recipe_is_replaced_with_its_options(tmp_path, overrides, names, options):
    (tmp_path / "base.yaml").write_text("extends: words-nft\nreward: {name: jpeg, options: {a: 1}, processes: 1}\n")
    terms = load_config(str(tmp_path / "base.yaml"), overrides).reward.rewards("")
    assert [term.name for term in terms] == names
    assert [term.options for term in terms] == options


def test_list_of_rewards_of_a_recipe_is_replaced_by_one_reward(tmp_path):
    (tmp_path / "base.yaml").write_text("extends: words-nft\nreward: {terms: [{name: jpeg}], combine: gdpo}\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nreward: {name: ocr}\n")
    settings = load_config(str(tmp_path / "top.yaml")).reward
    assert (settings.name, settings.terms, settings.combine.value) == ("ocr", (), "sum")


def test_name_of_an_environment_variable_is_an_option():
    settings = config("reward.name=jpeg", "reward.options={key_variable: MY_KEY}").reward
    assert settings.rewards("ocr")[0].options == {"key_variable": "MY_KEY"}


def test_short_form_is_a_single_reward_without_a_component_of_its_own():
    (term,) = config("reward.name=jpeg", "reward.processes=3", "reward.timeout_s=7").reward.rewards("ocr")
    assert (term.name, term.key, term.processes, term.timeout_s) == ("jpeg", "", 3, 7.0)
    (own,) = config().reward.rewards("ocr")
    assert own.name == "ocr"


def test_terms_of_one_name_get_numbered_keys_and_no_key_hides_the_total_or_the_judge():
    settings = config("reward.terms=[{name: jpeg}, {name: ocr}, {name: jpeg, options: {a: 1}}]").reward
    assert [term.key for term in settings.rewards("ocr")] == ["jpeg", "ocr", "jpeg#2"]


def test_recorded_scorer_covers_options_weight_and_version():
    assert Term(name="jpeg").recorded("v1") == "jpeg v1"
    term = Term(name="clip", key="clip", weight=0.5, options={"source": "a", "limit": 2})
    assert term.recorded("v1") == '0.5 clip(limit=2, source="a") v1'


def test_score_of_several_rewards_is_their_weighted_sum_with_every_raw_score():
    terms = [Term(name="ocr", key="ocr", weight=0.5), Term(name="jpeg", key="jpeg", weight=-2.0)]
    verdicts = [Verdict(Score(0.75, {"exact": 1.0}, "0.5 ocr 1")), Verdict(Score(0.25, {"exact": 3.0}, "-2 jpeg 1"))]
    made = combined(terms, verdicts)
    assert made.score.reward == 0.5 * 0.75 - 2.0 * 0.25
    assert made.score.components == {"ocr": 0.75, "jpeg": 0.25, "exact": 1.0, "jpeg.exact": 3.0}
    assert made.score.scorer == "0.5 ocr 1 + -2 jpeg 1"
    assert not made.problem


def test_picture_without_one_of_its_scores_has_no_reward_and_keeps_the_others():
    terms = [Term(name="ocr", key="ocr"), Term(name="jpeg", key="jpeg")]
    made = combined(terms, [Verdict(Score(0.75)), Verdict(Score(math.nan), "jpeg raised")])
    assert math.isnan(made.score.reward)
    assert made.score.components == {"ocr": 0.75}
    assert made.problem == "jpeg raised"


def test_resumed_run_may_change_the_processes_of_a_term_but_not_its_weight():
    terms = "reward.terms=[{{name: jpeg, {}}}]"
    before = config(terms.format("weight: 1")).model_dump(mode="json")
    check_unchanged(before, config(terms.format("processes: 5, timeout_s: 9")).model_dump(mode="json"))
    with pytest.raises(ConfigError, match=r"reward.terms.weight \(1.0 -> 2.0\)"):
        check_unchanged(before, config(terms.format("weight: 2")).model_dump(mode="json"))
