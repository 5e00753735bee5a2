"""`benchmarks/learn/` as a user runs it: files, resuming by repeating, merging, errors before writing."""

import json
from functools import partial

import pytest
from benchmark_command import TINY, run_benchmark

learn = partial(run_benchmark, "learn")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("learn")
    result = learn("--preset", "laptop", "--seeds", "0", "--out", str(out), "--json", "--set", *TINY)
    assert result.returncode == 0, result.stderr
    return out, result


@pytest.mark.slow
def test_learn_ends_with_one_json_object_and_leaves_curve_pictures_and_weights(finished):
    out, result = finished
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["benchmark"] == "learn"
    assert {"commit", "date", "hardware", "seeds", "figures"} <= set(summary)
    assert set(summary["figures"]["nft_final_reward"]) == {"value", "low", "high", "unit"}
    for name in (
        "words-nft-seed0.json",
        "words-nft-seed0.png",
        "words-nft-seed0.safetensors",
        "learn.json",
        "learn.png",
    ):
        assert (out / name).stat().st_size > 0
    run = json.loads((out / "words-nft-seed0.json").read_text())
    assert [point["iteration"] for point in run["points"]] == [0, 1, 2]
    assert run["points"][0]["reward"] != run["points"][-1]["reward"]


@pytest.mark.slow
def test_learn_repeated_runs_nothing_again_and_merges_to_the_same_figures(finished, tmp_path):
    out, result = finished
    before = (out / "words-nft-seed0.json").stat().st_mtime_ns
    again = learn("--preset", "laptop", "--seeds", "0", "--out", str(out), "--json", "--set", *TINY)
    assert (out / "words-nft-seed0.json").stat().st_mtime_ns == before
    merged = learn("--merge", str(out / "words-nft-seed0.json"), "--out", str(tmp_path / "joined"), "--json")
    summaries = [json.loads(run.stdout.splitlines()[-1]) for run in (result, again, merged)]
    assert summaries[0] == summaries[1] == summaries[2]
    assert (tmp_path / "joined.png").stat().st_size > 0


def test_learn_with_a_misspelt_key_exits_2_and_writes_nothing(tmp_path):
    out = tmp_path / "never"
    result = learn("--preset", "laptop", "--out", str(out), "--set", "rollout.group_sise=4")
    assert result.returncode == 2
    assert "group_size" in result.stderr
    assert "Traceback" not in result.stderr
    assert not out.exists()


@pytest.mark.slow
def test_learn_with_other_settings_does_not_pass_off_an_old_result(finished):
    out, _ = finished
    result = learn("--preset", "laptop", "--seeds", "0", "--out", str(out), "--set", *TINY, "train.lr=3e-4")
    assert result.returncode == 2
    assert "train.lr" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_merge_of_runs_that_differ_is_refused(finished, tmp_path):
    out, _ = finished
    run = json.loads((out / "words-nft-seed0.json").read_text())
    other = tmp_path / "other.json"
    for change, reason in (
        ({"seed": 1, "family": "scenes"}, "one family"),
        ({}, "given twice"),
        ({"seed": 1, "config": {**run["config"], "iterations": 9}}, "iterations"),
        ({"seed": 1, "commit": "another"}, "commit"),
    ):
        other.write_text(json.dumps({**run, **change}))
        result = learn("--merge", str(out / "words-nft-seed0.json"), str(other), "--out", str(tmp_path / "joined"))
        assert result.returncode == 2
        assert reason in result.stderr
    assert not (tmp_path / "joined.json").exists()
