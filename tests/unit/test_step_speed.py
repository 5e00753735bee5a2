"""The speed that a worker reports, alone and with a crew."""

import pytest

from spotlight.node.step_speed import StepSpeed


def test_part_filled_batches_give_a_speed_until_a_fuller_one_is_measured():
    step_speed = StepSpeed()
    step_speed.record(rows=1, capacity=16, degree=1, seconds=0.1)
    assert step_speed.row_steps_per_s(1) == pytest.approx(40.0), "a step of few rows takes as long as one of four"
    step_speed.record(rows=16, capacity=16, degree=1, seconds=0.8)
    step_speed.record(rows=6, capacity=16, degree=1, seconds=0.6)
    assert step_speed.row_steps_per_s(1) == pytest.approx(20.0)


def test_gain_of_a_crew_is_the_ratio_of_steps_with_the_same_rows():
    step_speed = StepSpeed()
    step_speed.record(rows=8, capacity=8, degree=1, seconds=0.4)
    step_speed.record(rows=2, capacity=8, degree=1, seconds=0.3)
    step_speed.record(rows=2, capacity=8, degree=3, seconds=0.15)
    assert step_speed.gain(3) == pytest.approx(2.0)
    assert step_speed.row_steps_per_s(3) == pytest.approx(40.0)


def test_crew_without_a_comparison_counts_as_no_faster_than_one_worker():
    step_speed = StepSpeed()
    step_speed.record(rows=8, capacity=8, degree=1, seconds=0.4)
    step_speed.record(rows=1, capacity=8, degree=2, seconds=0.01)
    assert step_speed.row_steps_per_s(2) == step_speed.row_steps_per_s(1)


def test_steps_of_a_crew_do_not_change_the_speed_of_the_worker_alone():
    step_speed = StepSpeed()
    step_speed.record(rows=8, capacity=8, degree=1, seconds=0.4)
    step_speed.record(rows=8, capacity=8, degree=4, seconds=0.1)
    assert step_speed.row_steps_per_s(1) == pytest.approx(20.0)


def test_saturating_batch_follows_the_smallest_batch_that_was_timed():
    step_speed = StepSpeed()
    step_speed.record(rows=16, capacity=16, degree=1, seconds=0.8)
    step_speed.record(rows=8, capacity=16, degree=1, seconds=0.4)
    assert step_speed.saturating_rows() is None, "these batches may all be saturating"
    step_speed.record(rows=3, capacity=16, degree=1, seconds=0.31)
    assert step_speed.saturating_rows() == pytest.approx(6.2), "three rows take as long as 6.2 of 20 row-steps per s"
    step_speed.record(rows=1, capacity=16, degree=1, seconds=0.07)
    assert step_speed.saturating_rows() == pytest.approx(1.4)
    step_speed.record(rows=2, capacity=16, degree=1, seconds=9.0)
    assert step_speed.saturating_rows() == pytest.approx(1.4), "two rows are not the smallest batch"


def test_one_slow_step_of_the_smallest_batch_counts_as_one_of_a_larger_batch():
    step_speed = StepSpeed()
    step_speed.record(rows=16, capacity=16, degree=1, seconds=0.8)
    step_speed.record(rows=1, capacity=16, degree=1, seconds=9.0)
    assert step_speed.saturating_rows() == pytest.approx(16.0), "no batch takes longer than a larger one"
    step_speed.record(rows=2, capacity=16, degree=1, seconds=0.1)
    assert step_speed.saturating_rows() == pytest.approx(2.0)


def test_saturating_batch_needs_a_full_batch_alone():
    step_speed = StepSpeed()
    step_speed.record(rows=1, capacity=16, degree=1, seconds=0.1)
    assert step_speed.saturating_rows() is None
    step_speed.record(rows=16, capacity=16, degree=2, seconds=0.1)
    assert step_speed.saturating_rows() is None
    step_speed.record(rows=16, capacity=16, degree=1, seconds=0.16)
    step_speed.record(rows=1, capacity=16, degree=2, seconds=0.001)
    assert step_speed.saturating_rows() == pytest.approx(10.0)
