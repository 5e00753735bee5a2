"""`benchmarks/lib`: tasks in several processes, and intervals over independent units."""

from functools import partial
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.lib.bootstrap import interval
from benchmarks.lib.parallel import run_all


def leave_a_file(folder: Path, name: str) -> None:
    """Works in any process; the task "bad" fails."""
    if name == "bad":
        raise ValueError(f"the task {name} fails")
    (folder / name).touch()


@pytest.mark.parametrize("jobs", [1, 2])
def test_all_tasks_leave_their_files(tmp_path, jobs):
    run_all(partial(leave_a_file, tmp_path), ["a", "b", "c"], jobs, "tasks")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_tasks_after_a_failing_one_still_run_and_its_error_is_raised(tmp_path):
    with pytest.raises(ValueError, match="bad"):
        run_all(partial(leave_a_file, tmp_path), ["bad", "b", "c"], 2, "tasks")
    assert {path.name for path in tmp_path.iterdir()} == {"b", "c"}


def test_interval_shrinks_with_more_units_and_holds_the_statistic():
    few, many = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0] * 16
    (low, high), (lower, higher) = interval(many, fmean), interval(few, fmean)
    assert lower < low < 2.5 < high < higher
    assert interval(few, fmean) == (lower, higher), "reproducible"


def test_values_of_one_unit_stay_together():
    """Two seeds with four races each: the mean of a draw is one of three values, however many races there are."""
    seeds = [[1.0] * 4, [3.0] * 4]
    assert interval(seeds, lambda drawn: fmean(value for seed in drawn for value in seed)) == (1.0, 3.0)
    assert interval([2.0], fmean) == (2.0, 2.0)
