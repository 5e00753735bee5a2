"""`benchmarks/ema.py`: one training run, two averages, each the curve of an ordinary run with that setting."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = [
    "iterations=2", "rollout.prompts=2", "rollout.group_size=2", "rollout.steps=2",
    "train.micro_batch=4", "eval.prompts=4", "eval.steps=2", "eval.every=1", "reward.name=jpeg", "reward.judge=jpeg",
    "reward.processes=1",
]  # fmt: skip
WARM, CONSTANT = "words-nft-seed0-warmup.json", "words-nft-seed0-constant.json"


def run(script, *arguments):
    environment = os.environ | {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def rewards(path: Path) -> list[float]:
    return [point["reward"] for point in json.loads(path.read_text())["points"]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("ema")
    result = run("ema.py", "--seeds", "0", "--out", out, "--json", "--set", *TINY)
    assert result.returncode == 0, result.stderr
    return out, json.loads(result.stdout.splitlines()[-1])


def test_both_averages_start_from_the_base_and_part_with_the_first_steps(finished):
    out, summary = finished
    warm, constant = rewards(out / WARM), rewards(out / CONSTANT)
    assert warm[0] == constant[0]
    assert all(one != other for one, other in zip(warm[1:], constant[1:], strict=True))
    assert summary["figures"]["gain_2"]["value"] == pytest.approx(warm[2] - constant[2])
    assert (out / "ema.png").stat().st_size > 0


def test_average_beside_the_trainers_own_is_that_of_an_ordinary_run_with_the_setting(finished, tmp_path):
    out, _ = finished
    settings = ("--set", *TINY, "train.ema_warmup=false")
    plain = run("learn.py", "--preset", "laptop", "--seeds", "0", "--out", tmp_path, *settings)
    assert plain.returncode == 0, plain.stderr
    assert rewards(tmp_path / "words-nft-seed0.json") == rewards(out / CONSTANT)


def test_finished_seed_is_not_run_again_and_half_a_pair_is_refused(finished):
    out, summary = finished
    before = (out / WARM).stat().st_mtime_ns
    again = run("ema.py", "--seeds", "0", "--out", out, "--json", "--set", *TINY)
    assert json.loads(again.stdout.splitlines()[-1]) == summary
    assert (out / WARM).stat().st_mtime_ns == before
    alone = run("ema.py", "--merge", out / WARM, "--out", out / "half")
    assert alone.returncode == 2
    assert "each seed has one file with warm-up and one without" in alone.stderr
    assert not (out / "half.json").exists()
