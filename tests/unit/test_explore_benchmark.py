"""`benchmarks/explore/`: both arms as a user runs them, resuming by repeating, merging, errors before writing."""

import json
from functools import partial

import msgspec
import pytest
from benchmark_command import TINY, run_benchmark

from benchmarks.explore import figures as explore_results
from spotlight.core.errors import InputError

PREVIEWS = ["--previews", "5", "--preview-steps", "2", "--audit-every", "1"]
PLAIN, EXPLORE = 0, 1
ARMS = ("words-nft-plain-seed0.json", "words-nft-explore-seed0.json")


explore = partial(run_benchmark, "explore")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("explore")
    result = explore("--seeds", "0", "--out", str(out), "--json", *PREVIEWS, "--set", *TINY)
    assert result.returncode == 0, result.stderr
    return out, result


@pytest.fixture
def made_up(finished):
    """A finished run of one arm with other rewards by iteration."""
    out, _ = finished

    def make(arm, rewards, **changes):
        run = explore_results.read(out / ARMS[arm])
        points = [msgspec.structs.replace(run.points[0], iteration=i, reward=reward) for i, reward in rewards.items()]
        return msgspec.structs.replace(run, points=points, **changes)

    return make


@pytest.mark.slow
def test_both_arms_start_alike_and_only_the_exploring_one_previews_and_audits(finished):
    out, result = finished
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["benchmark"] == "explore"
    assert {"words_nft_iterations_ratio", "words_nft_captured_variance"} <= set(summary["figures"])
    assert (out / "explore.png").stat().st_size > 0
    plain, explored = (json.loads((out / name).read_text()) for name in ARMS)
    assert plain["points"][0]["reward"] == explored["points"][0]["reward"]
    assert [point["iteration"] for point in explored["points"]] == [0, 1, 2]
    assert (plain["previews"], plain["audits"]) == (0, [])
    # Previews of the second iteration only: the first has none, and after the last there is nothing to choose for.
    assert explored["previews"] == 2 * 5
    (audit,) = explored["audits"]
    assert audit["samples"] == 2 * (5 - 2)
    assert 0 < audit["figures"]["captured_variance"] <= 1


@pytest.mark.slow
def test_audited_baseline_changes_the_advantages_of_the_same_seeds(finished, tmp_path):
    """The first iteration selects nothing; the second has the same seeds and rewards, and other advantages."""
    out, _ = finished
    audited = ("--arm", "explore", "--baseline", "audited", "--audit-share", "1")
    result = explore("--seeds", "0", "--out", str(tmp_path), *audited, *PREVIEWS, "--set", *TINY)
    assert result.returncode == 0, result.stderr
    kept, measured = (json.loads((folder / ARMS[1]).read_text()) for folder in (out, tmp_path))
    assert measured["explore"] == {**kept["explore"], "baseline": "audited", "audit_share": 1.0}
    assert measured["points"][1]["reward"] == kept["points"][1]["reward"]
    assert measured["points"][2]["trained"]["reward"] == kept["points"][2]["trained"]["reward"]
    assert measured["points"][2]["trained"]["grad_norm"] != kept["points"][2]["trained"]["grad_norm"]


@pytest.mark.slow
def test_repeating_runs_nothing_again_and_merging_gives_the_same_figures(finished, tmp_path):
    out, result = finished
    before = [(out / name).stat().st_mtime_ns for name in ARMS]
    # The number of reward processes changes speed, not outcome.
    quicker = [*TINY, "reward.processes=2"]
    again = explore("--seeds", "0", "--out", str(out), "--json", *PREVIEWS, "--set", *quicker)
    assert [(out / name).stat().st_mtime_ns for name in ARMS] == before
    joined = explore("--merge", *(str(out / name) for name in ARMS), "--out", str(tmp_path / "joined"), "--json")
    summaries = [json.loads(run.stdout.splitlines()[-1]) for run in (result, again, joined)]
    assert summaries[0] == summaries[1] == summaries[2]
    assert (tmp_path / "joined.png").stat().st_size > 0


@pytest.mark.slow
def test_other_preview_settings_do_not_pass_off_an_old_result(finished):
    out, _ = finished
    result = explore("--seeds", "0", "--arm", "explore", "--out", str(out), "--previews", "6", "--set", *TINY)
    assert result.returncode == 2
    assert "exploration.previews" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_ratio_compares_interpolated_first_crossings_of_the_plain_runs_final_score(made_up):
    plain = made_up(PLAIN, {0: 0.5, 10: 0.7, 20: 0.8, 30: 0.9})
    # The target is 0.85: the plain run is there at 25, this one half way between 4 and 6.
    explored = made_up(EXPLORE, {0: 0.5, 4: 0.8, 6: 0.9, 30: 0.7})
    figures = explore_results.figures_of([plain, explored])
    assert figures["words_nft_plain_iterations"].value == pytest.approx(25)
    assert figures["words_nft_explore_iterations"].value == pytest.approx(5)
    assert figures["words_nft_iterations_ratio"].value == pytest.approx(5)


@pytest.mark.slow
def test_ratio_of_an_exploring_run_that_never_reaches_the_target_is_a_bound(made_up):
    plain = made_up(PLAIN, {0: 0.5, 10: 0.8, 20: 0.8})
    explored = made_up(EXPLORE, {0: 0.5, 10: 0.6, 20: 0.7})
    figure = explore_results.figures_of([plain, explored])["words_nft_iterations_ratio"]
    assert figure.value == pytest.approx(10 / 20)
    assert "upper bound, 1 of 1" in figure.unit


@pytest.mark.slow
def test_ratio_is_taken_seed_by_seed_and_only_where_both_arms_ran(made_up):
    late, early = {0: 0.0, 8: 0.8, 16: 0.8}, {0: 0.0, 4: 0.8, 16: 0.8}
    runs = [made_up(PLAIN, late), made_up(EXPLORE, early), made_up(PLAIN, late, seed=1)]
    assert explore_results.figures_of(runs)["words_nft_iterations_ratio"].value == pytest.approx(2)
    figure = explore_results.figures_of([*runs, made_up(EXPLORE, late, seed=1)])["words_nft_iterations_ratio"]
    assert (figure.low, figure.value, figure.high) == pytest.approx((1, 1.5, 2))


@pytest.mark.slow
def test_merge_of_runs_that_differ_is_refused(made_up, tmp_path):
    first = made_up(PLAIN, {0: 0.5, 1: 0.6})
    for changes, reason in (
        ({}, "given twice"),
        ({"seed": 1, "config": {**first.config, "iterations": 9}}, "iterations"),
        ({"seed": 1, "commit": "another"}, "commit"),
        ({"arm": explore_results.Arm.EXPLORE, "config": {**first.config, "rollout": {}}}, "rollout.steps"),
        ({"seed": 1, "family": "words-large"}, "merge one"),
    ):
        with pytest.raises(InputError, match=reason):
            explore_results.present([first, msgspec.structs.replace(first, **changes)], tmp_path / "joined", False)
    assert not (tmp_path / "joined.json").exists()


@pytest.mark.slow
def test_mixed_seeds_may_be_of_several_commits_but_not_the_two_runs_of_a_seed(made_up):
    plain, explored = made_up(PLAIN, {0: 0.5, 8: 0.8}), made_up(EXPLORE, {0: 0.5, 4: 0.8})
    later = made_up(PLAIN, {0: 0.5, 8: 0.8}, seed=1, commit="later")
    explore_results.check_mergeable([plain, explored, later], mixed=True)
    with pytest.raises(InputError, match="commit"):
        explore_results.check_mergeable([plain, explored, later])
    with pytest.raises(InputError, match="commit"):
        explore_results.check_mergeable([plain, msgspec.structs.replace(explored, commit="later")], mixed=True)


@pytest.mark.slow
def test_the_exploring_arm_may_stop_earlier_than_the_plain_one(made_up):
    plain = made_up(PLAIN, {0: 0.5, 40: 0.9, 80: 0.9})
    short = made_up(EXPLORE, {0: 0.5, 20: 0.9}, config={**plain.config, "iterations": 20})
    explore_results.check_mergeable([plain, short])
    assert explore_results.figures_of([plain, short])["words_nft_iterations_ratio"].value == pytest.approx(2)


def test_bad_input_exits_2_and_writes_nothing(tmp_path):
    out = tmp_path / "never"
    for options, reason in (
        (["--previews", "2", "--set", *TINY], "rollout.group_size"),
        (["--set", "explore.steps=4"], "--preview-steps"),
        (["--loss", "flow_grpo", "--set", "rollout.initial_noise=shared"], "initial_noise"),
    ):
        result = explore("--out", str(out), *options)
        assert result.returncode == 2
        assert reason in result.stderr
        assert "Traceback" not in result.stderr
        assert not out.exists()
