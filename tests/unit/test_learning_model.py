"""The statistical model behind simulated rewards: what its files may contain, and the rewards that follow."""

import json

import msgspec
import numpy as np
import pytest

from spotlight.assets import asset
from spotlight.control.explore.config import Precision
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError
from spotlight.core.types import PromptId, Sample, SamplerKind, Sampling, Size, Version
from spotlight.core.work import Request, Work
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.numerics import TrainedState

SHIPPED = sorted(path.stem for path in asset("learning").glob("*.json"))
FULL = 10


def figures(**changes):
    return msgspec.to_builtins(LearningModel.load("words-large-nft"), str_keys=True) | changes


def written(folder, content):
    path = folder / "own.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def rewards(model, work, steps, prompts=30, seeds=64):
    return scores(ModelNumerics(model, 0, FULL), work, steps, prompts, seeds)


def scores(numerics, work, steps, prompts=30, seeds=64, digest="base", solver=SamplerKind.ODE):
    def score(prompt, seed):
        sample = Sample(
            prompt=PromptId(f"p{prompt}"),
            seed=seed,
            sampling=Sampling(steps=steps, size=Size(32, 96), sampler=solver),
            version=Version(0),
        )
        return numerics.score(Request(work=work, iteration=0, group=0, sample=sample), digest).reward

    return np.array([[score(prompt, seed) for seed in range(seeds)] for prompt in range(prompts)])


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_fit_names_its_sources_and_ranks_better_with_more_steps(name):
    model = LearningModel.load(name)
    assert model.name == name
    assert "docs/results/" in model.source
    curve = [model.rho(steps, FULL) for steps in range(1, FULL + 1)]
    assert curve == sorted(curve)
    assert model.mean(0.0) == pytest.approx(model.base)
    assert model.base < model.mean(10.0) < model.mean(100.0) <= model.limit


def test_learning_model_is_read_from_a_file_of_ones_own(tmp_path):
    model = LearningModel.load(written(tmp_path, figures(name="mine", rate=0.5)))
    assert (model.name, model.rate) == ("mine", 0.5)


def test_learning_model_of_an_unknown_name_suggests_a_shipped_one():
    with pytest.raises(ConfigError, match=r"no learning model 'words-larg-nft'.*did you mean 'words-large-nft'"):
        LearningModel.load("words-larg-nft")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"speed": 1}, "unknown field `speed`"),
        ({"rate": "fast"}, "Expected `float`"),
        ({"fidelity": {"many": 0.5}}, "Expected `int`"),
    ],
)
def test_learning_model_file_with_a_wrong_field_names_it(tmp_path, change, problem):
    with pytest.raises(ConfigError, match=rf"own\.json' cannot be read .*{problem}"):
        LearningModel.load(written(tmp_path, figures(**change)))


def test_truncated_learning_model_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"own\.json' cannot be read .*truncated"):
        LearningModel.load(written(tmp_path, "{"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"base": 0.0}, "base 0.0 is not between 0 and 1"),
        ({"base": 0.9, "limit": 0.8}, "limit 0.8 is not between base 0.9 and 1"),
        ({"rate": -1.0}, "rate -1.0"),
        ({"seed_std": 0.0}, "seed_std 0.0"),
        ({"prompt_std": -0.1}, "prompt_std -0.1"),
        ({"lag": -1.0}, "lag -1.0"),
        ({"noise": -0.1}, "noise -0.1"),
        ({"fidelity": {}}, "fidelity is empty"),
        ({"fidelity": {"4": 1.2}}, "outside 0 to 1"),
        ({"second_order": {"4": -0.1}}, "outside 0 to 1"),
        ({"fp8": 1.1}, "fp8 1.1"),
    ],
)
def test_learning_model_with_an_impossible_figure_names_it(tmp_path, change, problem):
    with pytest.raises(ConfigError, match=problem):
        LearningModel.load(written(tmp_path, figures(**change)))


@pytest.mark.parametrize("steps", [4, 10])
def test_previews_correlate_with_exact_rewards_as_the_fit_says(tmp_path, steps):
    model = LearningModel.load(written(tmp_path, figures(fidelity={"4": 0.5, "10": 0.9})))
    exact, preview = (rewards(model, work, n) for work, n in ((Work.ROLLOUT, FULL), (Work.PREVIEW, steps)))
    within = [np.corrcoef(a, b)[0, 1] for a, b in zip(exact, preview, strict=True)]
    assert np.mean(within) == pytest.approx(model.rho(steps, FULL), abs=0.04)
    assert exact.std(axis=1).mean() == pytest.approx(model.seed_std, rel=0.05)


@pytest.mark.parametrize(
    ("solver", "precision", "expected"),
    [
        (SamplerKind.ODE, Precision.EXACT, 0.5),
        (SamplerKind.ODE2, Precision.EXACT, 0.8),
        (SamplerKind.ODE, Precision.FP8, 0.25),
        (SamplerKind.ODE2, Precision.FP8, 0.4),
    ],
)
def test_previews_rank_better_by_second_order_steps_and_worse_in_fp8(solver, precision, expected):
    model = msgspec.structs.replace(
        LearningModel.load("scenes-nft"), fidelity={4: 0.5, FULL: 0.9}, second_order={4: 0.8}, fp8=0.5
    )
    numbers = ModelNumerics(model, 0, FULL)
    numbers.begin_run(lambda iteration, work: [], precision)
    exact = scores(numbers, Work.ROLLOUT, FULL, prompts=40, seeds=60)
    preview = scores(numbers, Work.PREVIEW, 4, prompts=40, seeds=60, solver=solver)
    within = [np.corrcoef(a, b)[0, 1] for a, b in zip(exact, preview, strict=True)]
    assert np.mean(within) == pytest.approx(expected, abs=0.04)


def test_mean_of_held_out_rewards_is_the_curve_for_every_run_seed():
    model = LearningModel.load("scenes-nft")
    for run_seed in range(3):
        found = scores(ModelNumerics(model, run_seed, FULL), Work.EVALUATION, FULL, prompts=1, seeds=400)
        assert found.mean() == pytest.approx(model.base, abs=1e-9)
        assert found.std() == pytest.approx(np.hypot(model.prompt_std, model.seed_std), rel=0.15)


def test_weights_that_lag_begin_slower_and_then_are_behind_by_the_lag():
    model = LearningModel.load("scenes-nft")
    lagging = msgspec.structs.replace(model, lag=5.0)
    assert lagging.mean(0.0) == model.base
    assert lagging.mean(1.0) - model.base < 0.2 * (model.mean(1.0) - model.base)
    assert lagging.mean(60.0) == pytest.approx(model.mean(55.0), rel=1e-4)


def test_noise_moves_every_version_but_not_the_base_and_not_with_the_machines():
    model = msgspec.structs.replace(LearningModel.load("scenes-nft"), noise=0.01)
    numerics, again = ModelNumerics(model, 0, FULL), ModelNumerics(model, 0, FULL)
    off = []
    for steps in range(1, 60):
        before, after = TrainedState(), TrainedState(steps, f"t{steps}", f"b{steps}", f"a{steps}")
        for each in (numerics, again):
            each.trained(before, m.Train(iteration=0, step=steps, items=(), last=True), after)
        found = [
            scores(each, Work.EVALUATION, FULL, prompts=1, seeds=2, digest=f"a{steps}") for each in (numerics, again)
        ]
        assert (found[0] == found[1]).all()
        off.append(found[0].mean() - model.base)
    assert np.std(off) == pytest.approx(0.01, rel=0.25)
    assert abs(np.corrcoef(off[1:], off[:-1])[0, 1]) < 0.3, "every version has its own"
    assert scores(numerics, Work.EVALUATION, FULL, prompts=1, seeds=2).mean() == pytest.approx(model.base)
