"""How fast a worker says it is, alone and with a crew."""

import pytest

from spotlight.node.step_speed import StepSpeed


def test_part_filled_batch_says_nothing_about_a_full_one():
    pace = StepSpeed()
    pace.record(rows=1, capacity=8, degree=1, seconds=0.1)
    assert pace.row_steps_per_s(1) is None
    pace.record(rows=8, capacity=8, degree=1, seconds=0.4)
    assert pace.row_steps_per_s(1) == pytest.approx(20.0)


def test_crew_is_as_much_faster_as_its_steps_of_the_same_rows_are():
    pace = StepSpeed()
    pace.record(rows=8, capacity=8, degree=1, seconds=0.4)
    pace.record(rows=2, capacity=8, degree=1, seconds=0.3)
    pace.record(rows=2, capacity=8, degree=3, seconds=0.15)
    assert pace.gain(3) == pytest.approx(2.0)
    assert pace.row_steps_per_s(3) == pytest.approx(40.0)


def test_crew_without_a_comparison_is_taken_for_no_faster_than_one():
    pace = StepSpeed()
    pace.record(rows=8, capacity=8, degree=1, seconds=0.4)
    pace.record(rows=1, capacity=8, degree=2, seconds=0.01)
    assert pace.row_steps_per_s(2) == pace.row_steps_per_s(1)


def test_steps_of_a_crew_do_not_change_what_is_known_of_the_worker_alone():
    pace = StepSpeed()
    pace.record(rows=8, capacity=8, degree=1, seconds=0.4)
    pace.record(rows=8, capacity=8, degree=4, seconds=0.1)
    assert pace.row_steps_per_s(1) == pytest.approx(20.0)
