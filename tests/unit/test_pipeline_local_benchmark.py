"""The benchmark of local pipelines: its bounds, its ratios, and how it merges earlier results."""

import msgspec
import pytest

from benchmarks.lib.local_runs import Timing
from benchmarks.pipeline_local import figures as results


def timing(seconds, rollout=0.0, train=0.0):
    return Timing(iterations=(seconds, seconds), rollout=rollout, train=train, losses=0)


def repeat(seed=0, rollout=4.0, train=4.0, rest=0.0, gap=5.0, pipelined=4.0):
    timings = {
        "serial": timing(rollout + train + rest, rollout, train),
        "gap": timing(gap),
        "pipelined": timing(pipelined),
    }
    return results.Repeat(
        seed=seed, order=tuple(timings), groups=8, timings=timings, commit="abc", date="today", hardware="a desk"
    )


def found(*repeats, digests=None):
    return results.Found(runs={"balanced": list(repeats)}, digests=digests or {})


def test_bound_of_gap_is_the_longer_phase_with_one_group_of_the_other_before_or_after():
    assert repeat(rollout=4, train=4).bound("gap") == pytest.approx(8 / 4.5)
    assert repeat(rollout=8, train=4).bound("gap") == pytest.approx(12 / 8.5)
    assert repeat(rollout=8, train=4, rest=1).bound("gap") == pytest.approx(13 / 9.5)


def test_bound_with_tag_shares_all_work_but_the_last_groups_training():
    assert repeat(rollout=12, train=4).bound("pipelined") == pytest.approx(16 / 8.25)


def test_bound_with_tag_where_training_is_longer_is_training_after_a_shared_first_group():
    assert repeat(rollout=2, train=10).bound("pipelined") == pytest.approx(12 / 10.125)


def test_ratios_are_of_one_repeat_and_spread_over_repeats():
    shown = results.figures(found(repeat(0, pipelined=4.0), repeat(1, pipelined=5.0), repeat(2, pipelined=8.0)))
    speedup = shown["balanced_pipelined_speedup"]
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((1.0, 1.6, 2.0))
    assert shown["balanced_tag_gain"].high == pytest.approx(5 / 4)


def test_weights_that_differ_in_any_step_are_not_called_the_same():
    same = found(repeat(), digests={"serial": ["a", "b"], "pipelined": ["a", "b"]})
    other = found(repeat(), digests={"serial": ["a", "b"], "pipelined": ["a", "c"]})
    assert [results.figures(each)["same_weights"].value for each in (same, other)] == [1.0, 0.0]


def test_merge_keeps_other_repeats_and_digests_and_replaces_what_was_run_again(tmp_path):
    path = tmp_path / "pipeline-local.json"
    path.write_bytes(msgspec.json.encode(found(repeat(0), repeat(1), digests={"serial": ["a"]})))
    again = repeat(1, pipelined=3.0)
    merged = results.joined(path, found(again, repeat(2)))
    assert [each.seed for each in merged.runs["balanced"]] == [0, 1, 2]
    assert merged.runs["balanced"][1] == again
    assert merged.digests == {"serial": ["a"]}
