"""The benchmark of time-step parallelism: it runs anywhere with a small model, and keeps sizes apart."""

from argparse import Namespace

import msgspec
import pytest
import torch

from benchmarks.tsp import figures as results
from benchmarks.tsp.run import measure


@pytest.fixture(autouse=True)
def _same_threads_and_precision_afterwards():
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def size_run(**arms):
    return results.SizeRun(commit="abc", date="today", hardware="a desk", settings={}, resident_gib=1.0, seconds=arms)


def test_ratio_is_of_one_round_to_the_same_round_one_at_a_time():
    shown = results.figures({512: size_run(batch_1=[1.0, 3.0], batch_8=[0.5, 1.0])})
    ratio = shown["per_timestep_ratio_batch_8_512"]
    assert (ratio.low, ratio.high) == pytest.approx((2.0, 3.0))


def test_merge_keeps_other_sizes_and_replaces_one_that_was_measured_again(tmp_path):
    out = tmp_path / "tsp"
    results.present({512: size_run(batch_1=[1.0]), 1280: size_run(batch_1=[5.0])}, out, as_json=False)
    found = {**results.earlier(out.with_suffix(".json")), 512: size_run(batch_1=[2.0])}
    results.present(found, out, as_json=False)
    runs = msgspec.json.decode(out.with_suffix(".json").read_bytes())["runs"]
    assert {size: run["seconds"]["batch_1"] for size, run in runs.items()} == {"512": [2.0], "1280": [5.0]}


def test_small_model_on_a_cpu_is_measured_at_every_batch_with_real_gradients(tmp_path):
    path = tmp_path / "tsp.json"
    flags = {"model": "small", "device": "cpu", "sizes": [64], "rounds": 1, "limit": 280.0, "no_tf32": False}
    measure(Namespace(**flags, merge=False, out=path, json=False))
    run = msgspec.json.decode(path.read_bytes())["runs"]["64"]
    arms = {"batch_1", "batch_2", "batch_4", "batch_8", "batch_16", "samples_8"}
    assert set(run["seconds"]) == arms
    assert not run["left_out"]
    assert all(norm > 0 for norm in run["gradient_norm"].values())
