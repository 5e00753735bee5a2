"""`benchmarks/staleness/`: its statistics on hand-made numbers, and a small run as a user starts it."""

import itertools
import json
from functools import partial

import msgspec
import numpy as np
import pytest
from benchmark_command import run_benchmark

from benchmarks.staleness import figures as staleness_results
from benchmarks.staleness.figures import Look
from benchmarks.staleness.statistics import hit_rate, kendall, random_choice, ranking, spearman
from spotlight.core.errors import InputError

RISING = np.array([1.0, 2.0, 3.0, 4.0])
SWAPPED = np.array([0.0, 2.0, 1.0, 3.0])
TIED = np.array([0.0, 0.0, 1.0, 1.0])
FLAT = np.array([5.0, 5.0, 5.0, 5.0])


def test_rank_correlations_of_one_swapped_pair_are_those_of_the_textbook():
    # Spearman: 1 - 6 (1 + 1) / (4 (16 - 1)). Kendall: 5 pairs agree, 1 does not.
    assert spearman(RISING, SWAPPED) == pytest.approx(0.8)
    assert kendall(RISING, SWAPPED) == pytest.approx(4 / 6)
    assert spearman(RISING, -RISING) == pytest.approx(-1)
    assert kendall(RISING, -RISING) == pytest.approx(-1)


def test_rank_correlations_with_ties_use_midranks_and_tau_b():
    # Midranks 1.5, 1.5, 3.5, 3.5 against 1, 2, 3, 4; four of six pairs differ and agree.
    assert spearman(RISING, TIED) == pytest.approx(4 / np.sqrt(5 * 4))
    assert kendall(RISING, TIED) == pytest.approx(4 / np.sqrt(6 * 4))


def test_previews_without_contrast_rank_nothing():
    assert spearman(FLAT, RISING) == 0
    assert kendall(FLAT, RISING) == 0


def test_hit_rate_counts_each_end_by_itself():
    # Lowest by preview is seed 1, whose exact reward is the second best; highest is seed 3, and rightly so.
    assert hit_rate(np.array([2.0, 1.0, 3.0, 4.0]), SWAPPED, kept=2) == 0.5
    assert hit_rate(SWAPPED, SWAPPED, kept=2) == 1
    assert hit_rate(-RISING, RISING, kept=2) == 0


def test_hit_rate_counts_seeds_that_tie_with_the_best():
    assert hit_rate(np.array([2.0, 1.0, 4.0, 3.0]), TIED, kept=2) == 1
    assert hit_rate(np.array([4.0, 1.0, 2.0, 3.0]), TIED, kept=2) == 0.5


def test_captured_variance_is_of_the_kept_seeds_exact_rewards_over_the_best_choice():
    misled = np.array([2.0, 1.0, 3.0, 4.0])
    # The kept seeds have exact 2 and 3 (variance 0.25), the best choice 0 and 3 (2.25).
    assert ranking([misled], [SWAPPED], kept=2).captured_variance == pytest.approx(0.25 / 2.25)
    # A well-ranked prompt weighs by its variance, one without contrast not at all.
    well = ranking([misled, RISING, RISING], [SWAPPED, 10 * RISING, FLAT], kept=2)
    assert well.captured_variance == pytest.approx((0.25 + 225.0) / (2.25 + 225.0))


def test_prompts_whose_exact_rewards_do_not_vary_do_not_count_in_correlations():
    both = ranking([RISING, RISING, FLAT], [SWAPPED, FLAT, RISING], kept=2)
    assert both.spearman == pytest.approx((0.8 + 0.0) / 2)
    assert both.kendall == pytest.approx((4 / 6 + 0.0) / 2)
    assert ranking([RISING], [FLAT], kept=2).spearman is None
    assert random_choice([FLAT], kept=2).captured_variance is None


def test_random_choice_is_the_mean_over_all_choices():
    for exact in (SWAPPED, TIED, np.array([0.0, 0.1, 0.1, 0.7])):
        subsets = [list(subset) for subset in itertools.combinations(range(4), 2)]
        best = max(exact[subset].var() for subset in subsets)
        orders = [np.array(order, dtype=float) for order in itertools.permutations(range(4))]
        blind = random_choice([exact], kept=2)
        assert blind.captured_variance == pytest.approx(np.mean([exact[subset].var() for subset in subsets]) / best)
        assert blind.hit_rate == pytest.approx(np.mean([hit_rate(order, exact, kept=2) for order in orders]))
        assert np.mean([spearman(order, exact) for order in orders]) == pytest.approx(blind.spearman)


# A high learning rate, so that one iteration changes which pictures compress well.
TINY = [
    "rollout.prompts=2", "rollout.group_size=2", "rollout.steps=2", "train.micro_batch=8",
    "train.lr=3e-3", "reward.name=jpeg", "reward.judge=jpeg", "reward.processes=0",
]  # fmt: skip
LOOKS = [
    "--checkpoints", "1", "2", "3", "--lags", "1", "--prompts", "2", "--candidates", "8", "--preview-steps", "2",
]  # fmt: skip


staleness = partial(run_benchmark, "staleness")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("staleness")
    result = staleness("--seeds", "0", "--out", str(out), "--json", *LOOKS, "--set", *TINY)
    assert result.returncode == 0, result.stderr
    return out, result


@pytest.mark.slow
def test_only_older_weights_rank_otherwise_than_the_exact_samples(finished):
    out, _ = finished
    run = staleness_results.read(out / "words-nft-seed0.json")
    assert [point.iteration for point in run.checkpoints] == [1, 2, 3]
    for point in run.checkpoints:
        # The preview has as many steps as the rollout here, so with the same weights it is the exact sample.
        assert point.at(Look.FEW, 0).spearman == pytest.approx(1)
        assert point.at(Look.FEW, 0).captured_variance == pytest.approx(1)
        assert point.at(Look.FULL, 1) == point.at(Look.FEW, 1)
        assert point.at(Look.FEW, 1).spearman < 1


@pytest.mark.slow
def test_json_has_the_figures_by_lag_and_merging_gives_the_same(finished, tmp_path, capsys):
    out, result = finished
    summary = json.loads(result.stdout.splitlines()[-1])
    assert {"words_nft_lag1_spearman", "words_nft_lag1_captured", "words_nft_lag1_few_captured"} <= set(
        summary["figures"]
    )
    run = staleness_results.read(out / "words-nft-seed0.json")
    staleness_results.present([run], tmp_path / "joined", as_json=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == summary
    assert (tmp_path / "joined.png").stat().st_size > 0


@pytest.mark.slow
def test_a_seed_cut_short_counts_at_the_checkpoints_that_all_seeds_have(finished):
    out, _ = finished
    whole = staleness_results.read(out / "words-nft-seed0.json")
    short = msgspec.structs.replace(whole, seed=1, checkpoints=whole.checkpoints[:1])
    early = whole.checkpoints[0].at(Look.FULL, 1).spearman
    figures = staleness_results.figures_of(staleness_results.of_experiment([whole, short], whole.experiment))
    assert figures["words_nft_lag1_spearman"].value == pytest.approx(early)
    assert "words_nft_lag1_spearman_late" not in figures


@pytest.mark.slow
def test_merge_of_runs_that_differ_is_refused(finished, tmp_path):
    out, _ = finished
    first = staleness_results.read(out / "words-nft-seed0.json")
    for changes, reason in (
        ({}, "given twice"),
        ({"seed": 1, "settings": {**first.settings, "candidates": 9}}, "looks.candidates"),
        ({"seed": 1, "commit": "another"}, "commit"),
        ({"seed": 1, "family": "words-large"}, "merge one"),
    ):
        with pytest.raises(InputError, match=reason):
            staleness_results.present([first, msgspec.structs.replace(first, **changes)], tmp_path / "joined", False)
    assert not (tmp_path / "joined.json").exists()


@pytest.mark.slow
def test_repeating_with_other_settings_does_not_pass_off_an_old_result(finished):
    out, _ = finished
    result = staleness("--seeds", "0", "--out", str(out), *LOOKS, "--candidates", "9", "--set", *TINY)
    assert result.returncode == 2
    assert "looks.candidates" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_repeating_runs_nothing_again(finished):
    out, first = finished
    # The number of reward processes changes speed, not outcome.
    again = staleness("--seeds", "0", "--out", str(out), "--json", *LOOKS, "--set", *TINY, "reward.processes=1")
    assert "not run again" in again.stderr
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]


def test_impossible_settings_are_refused_in_a_sentence():
    good = {"checkpoints": (8, 16, 32), "lags": (1, 8), "prompts": 2, "candidates": 8, "kept": 4, "preview_steps": 6}
    for changes, reason in (
        ({"checkpoints": (4, 16, 32)}, "no weights before the base"),
        ({"checkpoints": (8, 16)}, "give three"),
        ({"checkpoints": (16, 8, 32)}, "each larger than the last"),
        ({"candidates": 4}, "rollout.group_size"),
        ({"preview_steps": 0}, "preview-steps"),
    ):
        with pytest.raises(InputError, match=reason):
            staleness_results.StalenessSettings(**(good | changes))
