"""The fidelity benchmark: how it merges earlier results, and its errors."""

import msgspec
import pytest

from benchmarks.fidelity import figures as results
from benchmarks.fidelity import run as runs_of
from benchmarks.lib.local_runs import Timing
from spotlight.control.profiles import Operation, Profile
from spotlight.node.paced.quicker import quicker


def pair(seed, real, simulated):
    timings = [Timing(iterations=tuple(seconds), rollout=1.0, train=1.0, losses=0) for seconds in (real, simulated)]
    return results.Pair(seed=seed, commit="abc", profile="desk 0123", real=timings[0], simulated=timings[1])


def kept(path, runs):
    path.write_bytes(msgspec.json.encode({"benchmark": "fidelity", "runs": runs}))


def test_merge_keeps_other_kinds_and_seeds_and_replaces_what_was_run_again(tmp_path):
    path = tmp_path / "fidelity.json"
    kept(path, {"cpu": [pair(0, [4], [4]), pair(2, [4], [4])], "trace": [pair(0, [9], [9])]})
    again = pair(2, [5], [5])
    runs = results.joined(path, {"cpu": [again, pair(1, [4], [4])], "paced": [pair(0, [7], [7])]})
    assert {kind: [each.seed for each in pairs] for kind, pairs in runs.items()} == {
        "cpu": [0, 1, 2], "paced": [0], "trace": [0],
    }  # fmt: skip
    assert runs["cpu"][2] == again


def test_merge_into_a_file_that_is_not_there_keeps_what_was_found(tmp_path):
    found = {"cpu": [pair(0, [4], [4])]}
    assert results.joined(tmp_path / "fidelity.json", found) == found


def test_error_is_of_the_median_iteration_but_under_a_trace_of_the_sum():
    one = pair(0, [10, 10, 40], [11, 11, 20])
    figures = results.figures({"cpu": [one], "trace": [one]}, "desk")
    assert figures["fidelity_cpu_error"].value == pytest.approx(0.1)
    assert figures["fidelity_paced_trace_error"].value == pytest.approx(42 / 60 - 1)


def test_figure_over_seeds_has_their_spread():
    figures = results.figures({"cpu": [pair(0, [10], [9]), pair(1, [10], [10]), pair(2, [10], [12])]}, "desk")
    error = figures["fidelity_cpu_error"]
    assert (error.low, error.value, error.high) == pytest.approx((-0.1, 0.0, 0.2))
    assert figures["cpu_simulated_s"].high == 12


def test_profile_of_a_run_is_the_mean_of_those_before_and_after_it():
    before = Profile.load("cpu-words")
    between = runs_of.between(before, quicker(before, 1 / 4))
    for operation in (Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP):
        assert between.seconds(operation, 8) == pytest.approx(2 * before.seconds(operation, 8))
        assert between.p99(operation, 8) == pytest.approx(2 * before.p99(operation, 8))
