"""`benchmarks/asynchrony/`: both arms as a user runs them, resuming by repeating, merging, errors before writing."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
from benchmark_command import TINY, run_benchmark

from benchmarks.asynchrony.figures import Point, Result, figures_of, present, read
from benchmarks.lib import merge
from spotlight.core.errors import InputError

asynchrony = partial(run_benchmark, "asynchrony")


@pytest.mark.slow
def test_both_arms_run_once_and_half_of_the_second_iteration_is_stale_in_one_of_them(tmp_path: Path):
    run = ("--seeds", "0", "--loss", "nft", "--out", str(tmp_path), "--json", "--set")
    first = asynchrony(*run, *TINY)
    assert first.returncode == 0, first.stderr
    figures = json.loads(first.stdout.splitlines()[-1])["figures"]
    assert figures["stale_samples"]["value"] == 0.5
    assert figures["drift_stale"]["value"] >= 0
    assert read(tmp_path / "words-nft-synchronous-seed0.json").stale_samples == 0.0
    again = asynchrony(*run, *TINY)
    assert again.stderr.count("exists; not run again") == 2
    assert json.loads(again.stdout.splitlines()[-1])["figures"] == figures
    other = asynchrony(*run, *TINY, "train.lr=1.0e-5")
    assert other.returncode == 2
    assert "made with other settings" in other.stderr


def result(arm: str, seed: int, reward: float, loss: str = "nft", **changes: object) -> Result:
    points = (
        Point(iteration=0, reward=0.5, low=0.4, high=0.6),
        Point(iteration=8, reward=reward, low=reward - 0.1, high=reward + 0.1),
    )
    is_stale = arm == "asynchronous"
    made = Result(
        family="words",
        loss=loss,
        arm=arm,
        seed=seed,
        iterations=8,
        points=points,
        figures={"clip_fraction_fresh": 0.1, "clip_fraction_stale": 0.3 + seed} if is_stale else {},
        stale_samples=0.5 if is_stale else 0.0,
        virtual_hours=1.0,
        settings="x",
        seconds=1.0,
        commit="abc",
    )
    return msgspec.structs.replace(made, **changes)


RUNS = [
    *(result("synchronous", seed, reward) for seed, reward in enumerate((0.80, 0.90, 0.85))),
    *(result("asynchronous", seed, reward) for seed, reward in enumerate((0.81, 0.88, 0.86))),
]


def test_rewards_are_means_over_seeds_with_the_smallest_and_the_largest():
    figures = figures_of(RUNS, "nft")
    assert figures["reward_synchronous"].value == pytest.approx(0.85)
    assert (figures["reward_synchronous"].low, figures["reward_synchronous"].high) == (0.80, 0.90)
    assert figures["reward_difference"].value == pytest.approx(0.0)
    assert figures["reward_difference"].high == pytest.approx(0.01)
    assert figures["intervals_overlap"].value == 1.0
    assert figures["stale_samples"].value == 0.5
    assert figures["clip_fraction_stale"].low == 0.3


def test_arms_whose_seeds_are_apart_do_not_overlap():
    worse = [result("asynchronous", seed, 0.6) for seed in range(3)]
    assert figures_of([*RUNS[:3], *worse], "nft")["intervals_overlap"].value == 0.0


def test_one_seed_has_no_interval_to_overlap():
    assert "intervals_overlap" not in figures_of([RUNS[0], RUNS[3]], "nft")


def test_figures_of_other_losses_bear_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    other = [result(run.arm, run.seed, run.reward, loss="flow_grpo") for run in RUNS]
    present([*RUNS, *other], tmp_path / "asynchrony", as_json=True)
    printed = msgspec.json.decode(capsys.readouterr().out.splitlines()[-1])
    assert printed["figures"]["reward_asynchronous_flow_grpo"]["value"] == pytest.approx(0.85)
    assert printed["seeds"] == [0, 1, 2]
    assert msgspec.json.decode((tmp_path / "asynchrony.json").read_bytes())["runs"]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (RUNS[0], "given twice"),
        (result("synchronous", 7, 0.8, family="scenes"), "several families"),
        (result("synchronous", 7, 0.8, commit="other"), "several commits"),
        (result("synchronous", 7, 0.8, iterations=9), "cannot be compared"),
    ],
)
def test_runs_of_other_experiments_are_not_merged(odd: Result, message: str, tmp_path: Path):
    with pytest.raises(InputError, match=message):
        present([*RUNS, odd], tmp_path / "asynchrony", as_json=False)
    assert not list(tmp_path.iterdir())


def test_results_come_back_from_their_file_and_others_are_refused(tmp_path: Path):
    merge.write(tmp_path / "one.json", RUNS[3])
    assert read(tmp_path / "one.json") == RUNS[3]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"not the result of a run of benchmarks\.asynchrony"):
        read(tmp_path / "other.json")
