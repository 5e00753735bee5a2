"""`benchmarks/explore/`: measures that do not move, and the arms that choose among finished rollouts."""

import json
from functools import partial

import msgspec
import numpy as np
import pytest
from benchmark_command import ROOT, TINY, run_benchmark

from benchmarks.explore import figures as results
from benchmarks.explore.figures import Arm, ArmResult
from benchmarks.explore.fixed_measures import area, fixed_figures, iterations_to
from benchmarks.explore.grpo_study import VARIANTS
from benchmarks.learn.figures import CurvePoint
from spotlight.config import load_config

STORED = ROOT / "docs/results/explore.json"
explore = partial(run_benchmark, "explore")


def run(arm: Arm, rewards: dict[int, float], seed: int = 0, judge: float | None = None, variant: str = "") -> ArmResult:
    points = [
        CurvePoint(iteration=iteration, seconds=0.0, reward=reward, low=0.0, high=1.0, strict=None, judge=judge)
        for iteration, reward in rewards.items()
    ]
    return ArmResult(family="words-large", loss="nft", seed=seed, config={}, points=points, arm=arm, variant=variant)


SLOW = {0: 0.80, 10: 0.90, 20: 0.94, 30: 0.97, 40: 0.975}
QUICK = {0: 0.80, 10: 0.96, 20: 0.98, 30: 0.99}


# -- measures ----------------------------------------------------------------------------------------------------------


def test_iterations_to_a_fixed_score_are_of_two_evaluation_means():
    # Means: 0.85 at 5, 0.92 at 15, 0.955 at 25, 0.9725 at 35.
    assert iterations_to(run(Arm.PLAIN, SLOW), 0.92) == pytest.approx(15)
    assert iterations_to(run(Arm.PLAIN, SLOW), 0.96) == pytest.approx(25 + 10 * 0.005 / 0.0175)
    assert iterations_to(run(Arm.PLAIN, SLOW), 0.98) is None
    lucky = run(Arm.PLAIN, {0: 0.8, 10: 0.97, 20: 0.9, 30: 0.96, 40: 0.97})
    assert iterations_to(lucky, 0.96) == pytest.approx(30 + 5 * (0.96 - 0.935) / (0.965 - 0.935) * 2 - 5)


def test_figures_at_fixed_scores_say_which_runs_never_reach_them():
    pairs = [(run(Arm.PLAIN, SLOW, seed), run(Arm.EXPLORE, QUICK, seed)) for seed in range(3)]
    figures = fixed_figures("words_nft", Arm.PLAIN, Arm.EXPLORE, pairs)
    ratio = figures["words_nft_iterations_ratio_at_0.96"]
    plain, ours = (iterations_to(each, 0.96) for each in pairs[0])
    assert ratio.value == ratio.low == ratio.high == pytest.approx(plain / ours)
    assert "never" not in ratio.unit
    bound = figures["words_nft_iterations_ratio_at_0.98"]
    assert bound.value == pytest.approx(40 / iterations_to(pairs[0][1], 0.98))
    assert "3 of 3 plain runs never reached it" in bound.unit


def test_intervals_are_over_seeds():
    quicker = {0: 0.80, 5: 0.96, 10: 0.98, 15: 0.99}
    pairs = [(run(Arm.PLAIN, SLOW, seed), run(Arm.EXPLORE, QUICK if seed % 2 else quicker, seed)) for seed in range(4)]
    figure = fixed_figures("words_nft", Arm.PLAIN, Arm.EXPLORE, pairs)["words_nft_explore_iterations_to_0.90"]
    assert figure.low < figure.value < figure.high
    assert "over 4 seeds" in figure.unit


def test_area_is_the_mean_reward_over_the_iterations_that_both_arms_have():
    assert area(run(Arm.PLAIN, {0: 0.5, 10: 0.7, 20: 0.9}), 20) == pytest.approx(0.7)
    assert area(run(Arm.PLAIN, {0: 0.5, 10: 0.7, 20: 0.9}), 10) == pytest.approx(0.6)
    assert area(run(Arm.PLAIN, {0: 0.5, 20: 0.9}), 10) == pytest.approx(0.6), "between evaluations"
    pairs = [(run(Arm.PLAIN, SLOW), run(Arm.EXPLORE, QUICK))]
    figures = fixed_figures("words_nft", Arm.PLAIN, Arm.EXPLORE, pairs)
    assert figures["words_nft_plain_area"].value == pytest.approx((0.85 + 0.92 + 0.955) / 3)


def test_second_recogniser_is_reported_only_where_every_last_evaluation_has_it():
    judged = [(run(Arm.PLAIN, SLOW, judge=0.87), run(Arm.EXPLORE, QUICK, judge=0.95))]
    figures = fixed_figures("w", Arm.PLAIN, Arm.EXPLORE, judged)
    assert (figures["w_plain_final_judge"].value, figures["w_explore_final_judge"].value) == (0.87, 0.95)
    mixed = [*judged, (run(Arm.PLAIN, SLOW, 1), run(Arm.EXPLORE, QUICK, 1, judge=0.95))]
    assert "w_plain_final_judge" not in fixed_figures("w", Arm.PLAIN, Arm.EXPLORE, mixed)


def test_stored_result_is_read_again_and_has_the_new_figures(tmp_path):
    stored = json.loads(STORED.read_text())
    runs = results.read_all(STORED)
    assert len(runs) == len(stored["runs"])
    results.present(runs, tmp_path / "again", False, mixed=True)
    again = json.loads((tmp_path / "again.json").read_text())
    assert {name: again["figures"][name] for name in stored["figures"]} == stored["figures"]
    assert again["figures"]["words_nft_iterations_ratio_at_0.96"]["value"] > 1
    assert {"scenes_nft_plain_iterations_to_0.60", "words_nft_explore_area"} <= again["figures"].keys()


def test_arms_that_choose_among_rollouts_are_compared_with_both_others():
    runs = [run(Arm.PLAIN, SLOW), run(Arm.OVERSAMPLE, QUICK), run(Arm.WHOLE, QUICK)]
    runs = [msgspec.structs.replace(each, variant="4-of-32") for each in runs]
    figures = results.figures_of(runs)
    assert figures["words_nft_4_of_32_oversample_vs_plain_iterations_ratio_at_0.96"].value > 2
    assert figures["words_nft_4_of_32_oversample_vs_whole_iterations_ratio_at_0.96"].value == pytest.approx(1)
    assert "words_nft_4_of_32_iterations_ratio" not in figures


# -- arms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_the_study_fit_the_recipe(variant):
    changes, drawn = VARIANTS[variant]
    config = load_config("words-large-flow-grpo", changes)
    assert config.rollout.initial_noise.value == "shared"
    assert (drawn or 4 * config.rollout.group_size) in (32, 64)


SMALL = (*TINY, "rollout.steps=4", "rollout.window_size=1", "eval.steps=2")


def test_flags_of_the_study_are_checked_before_anything_is_written(tmp_path):
    out = tmp_path / "never"
    for options, reason in (
        (["--variant", "4-of-32"], "--loss flow_grpo"),
        (["--loss", "flow_grpo", "--variant", "late-shared", "--arm", "explore"], "--arm plain oversample"),
    ):
        result = explore("--out", out, *options)
        assert (result.returncode, out.exists()) == (2, False)
        assert reason in result.stderr


@pytest.mark.slow
def test_oversampling_trains_on_the_most_contrasting_of_the_rollouts_that_the_whole_arm_trains_on(tmp_path):
    flags = (
        "--loss",
        "flow_grpo",
        "--variant",
        "late-shared",
        "--arm",
        "plain",
        "oversample",
        "whole",
        "--previews",
        "4",
    )
    small = (*SMALL, "rollout.window_range=[1, 3]")
    result = explore("--seeds", "0", "--out", tmp_path, "--json", *flags, "--jobs", "2", "--set", *small)
    assert result.returncode == 0, result.stderr
    runs = {each.arm: each for path in tmp_path.glob("*seed0.json") for each in results.read_all(path)}
    assert set(runs) == {Arm.PLAIN, Arm.OVERSAMPLE, Arm.WHOLE}
    assert {each.variant for each in runs.values()} == {"late-shared"}
    first = {arm: each.points[1].trained for arm, each in runs.items()}
    # Both draw the same four trajectories of each prompt with the first weights, and train on two or on four of them.
    assert first[Arm.OVERSAMPLE].reward == first[Arm.WHOLE].reward
    assert first[Arm.OVERSAMPLE].grad_norm != first[Arm.WHOLE].grad_norm
    assert first[Arm.PLAIN].reward != first[Arm.WHOLE].reward
    summary = json.loads(result.stdout.splitlines()[-1])
    assert "words_flow_grpo_late_shared_oversample_vs_whole_oversample_area" in summary["figures"]
    again = explore("--seeds", "0", "--out", tmp_path, *flags, "--set", *small)
    assert again.stderr.count("not run again") == 3


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [([0.5, 0.1, 0.9, 0.5, 0.6], [1, 2]), ([0.3, 0.3, 0.3], [0, 1]), ([np.nan, 0.2, 0.4, 0.9], [1, 3])],
)
def test_finished_rollouts_with_the_largest_contrast_are_kept(rewards, kept):
    from benchmarks.explore.oversampling import contrasting

    assert contrasting(np.array(rewards), 2) == kept


def test_oversampler_keeps_the_rows_that_it_chose():
    import torch

    from benchmarks.explore.oversampling import taken
    from spotlight.compute.rollout.denoise import Rollout

    whole = Rollout(
        samples=tuple("abcd"), x0_BSC=torch.arange(4.0), path_BKSC=torch.arange(4.0), log_prob_BK=torch.arange(4.0),
        mean_BKSC=torch.arange(4.0),
    )  # fmt: skip
    part = taken(whole, torch.tensor([3, 0]))
    assert part.samples == ("d", "a")
    assert np.array_equal(part.x0_BSC, [3.0, 0.0])
    assert np.array_equal(part.log_prob_BK, part.x0_BSC)
