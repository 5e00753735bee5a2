"""`train.micro_batch: auto`: which size is chosen, and that the search leaves the gradient unchanged."""

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError
from test_trainer import assert_close, experience_for, tiny_trainer
from torch import nn

from spotlight.compute.meter import BatchReading
from spotlight.compute.train.batch_search import BatchSearch
from spotlight.compute.train.config import TrainConfig
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.errors import ConfigError

MEMORY = 1000


class ScriptedMeter:
    """A device whose batches take the given seconds and bytes."""

    def __init__(self, seconds: Callable[[int], float], bytes_per_row: int = 0, memory: int | None = MEMORY) -> None:
        self.memory = memory
        self._seconds = seconds
        self._bytes_per_row = bytes_per_row
        self.rows = 0
        self._readings = 0

    def start(self) -> None:
        pass

    def stop(self) -> BatchReading:
        self._readings += 1
        # The first batch of each size is slow, as on a device that prepares for a new shape.
        late = 100.0 if self._readings % 3 == 1 else 1.0
        return BatchReading(late * self._seconds(self.rows), self.rows * self._bytes_per_row)

    def release(self) -> None:
        pass


def searched(
    meter: ScriptedMeter, rows: int, fits: int = 10**9, calls: int = 1, most: int | None = None, first: int = 1
) -> tuple[BatchSearch, nn.Parameter]:
    """A search over `rows` rows, each of which adds 1 to a gradient; batches beyond `fits` fail half-way."""
    weight = nn.Parameter(torch.zeros(1))
    search = BatchSearch([weight], meter, most, first)
    for _ in range(calls):
        left = rows
        while left:
            size = search.size(left)
            meter.rows = size

            def backward(size: int = size) -> bool:
                (size * weight).sum().backward()
                if size > fits:
                    raise torch.OutOfMemoryError("out of memory")
                return True

            if search.run(size, backward) is not None:
                left -= size
    return search, weight


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (lambda rows: 1.0 * rows, 1),
        (lambda rows: max(4.0, 1.0 * rows), 4),
        (lambda rows: max(32.0, 1.0 * rows), 32),
        # 4 % more throughput is not worth twice the memory: measured, and not chosen.
        (lambda rows: rows * (0.96 if rows >= 8 else {1: 4.0, 2: 2.0, 4: 1.0}[rows]), 4),
        (lambda rows: rows * {1: 1.0, 2: 0.9, 4: 0.88}[rows], 2),
        # Slower again.
        (lambda rows: rows * {1: 1.0, 2: 0.6, 4: 0.7}[rows], 2),
    ],
    ids=["flat", "launch_bound_4", "launch_bound_32", "small_gain", "smaller_gain", "slower"],
)
def test_chosen_is_the_smallest_size_within_five_percent_of_the_best(seconds, expected):
    search, weight = searched(ScriptedMeter(seconds), rows=400)
    assert search.chosen == expected == search.size(400)
    assert float(weight.grad) == 400


@pytest.mark.parametrize(("bytes_per_row", "expected"), [(57, 8), (56, 16), (450, 2), (2000, 1)])
def test_chosen_fits_nine_tenths_of_the_memory(bytes_per_row, expected):
    search, weight = searched(ScriptedMeter(lambda rows: 1.0, bytes_per_row), rows=400)
    assert search.chosen == expected
    assert float(weight.grad) == 400


def test_device_that_does_not_report_its_memory_is_measured_by_time_alone():
    search, _ = searched(ScriptedMeter(lambda rows: max(16.0, rows), 10**9, memory=None), rows=400)
    assert search.chosen == 16


@pytest.mark.parametrize("fits", [1, 2, 11, 63])
def test_batch_that_ran_out_of_memory_leaves_the_gradient_and_is_repeated_smaller(fits):
    search, weight = searched(ScriptedMeter(lambda rows: 1.0), rows=400, fits=fits)
    assert search.chosen == 2 ** (fits.bit_length() - 1)
    assert float(weight.grad) == 400


def test_single_row_that_does_not_fit_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        searched(ScriptedMeter(lambda rows: 1.0), rows=4, fits=0)


def test_search_goes_on_from_part_to_part_until_larger_batches_come():
    few, _ = searched(ScriptedMeter(lambda rows: 1.0), rows=7, calls=10)
    assert few.chosen == 4
    many, weight = searched(ScriptedMeter(lambda rows: max(16.0, rows)), rows=40, calls=10)
    assert many.chosen == 16
    assert float(weight.grad) == 400


@pytest.mark.parametrize("most", [1, 3, 4, 12, 16])
def test_search_within_a_memory_plan_begins_with_its_first_size_and_never_exceeds_its_largest(most):
    tried: list[int] = []
    meter = ScriptedMeter(lambda rows: tried.append(rows) or 1.0)
    # A batch beyond the plan would fail.
    search, weight = searched(meter, rows=400, fits=most, most=most, first=4)
    assert tried[0] == min(4, most)
    assert max(tried) == search.chosen == most
    assert float(weight.grad) == 400


def test_fewer_rows_than_the_first_size_of_a_plan_run_as_one_batch():
    search, weight = searched(ScriptedMeter(lambda rows: 1.0), rows=3, most=16, first=4)
    assert (search.size(3), search.size(2)) == (3, 2)
    assert float(weight.grad) == 3


def test_plan_that_promises_too_much_is_corrected_by_the_search():
    search, weight = searched(ScriptedMeter(lambda rows: 1.0), rows=400, fits=2, most=16, first=8)
    assert search.chosen == 2
    assert float(weight.grad) == 400


@pytest.mark.parametrize("over", BatchesOver)
def test_trainer_that_searches_takes_the_step_of_one_that_does_not(over, monkeypatch):
    monkeypatch.setattr("spotlight.compute.train.trainer.DeviceMeter", lambda device: ScriptedMeter(lambda rows: 1.0))
    found, fixed = tiny_trainer(micro_batch="auto", batches_over=over), tiny_trainer(micro_batch=16)
    experience = experience_for(found)
    for trainer in (found, fixed):
        trainer.begin(8)
        trainer.add(experience, range(8))
    searched_for, wanted = (
        {name: p.grad for name, p in trainer.sets.theta.items() if p.grad is not None} for trainer in (found, fixed)
    )
    assert_close(searched_for, wanted, atol=1e-7)
    assert found.finish(0).figures["micro_batch"] == 2
    assert "micro_batch" not in fixed.finish(0).figures


def test_trainer_that_searches_survives_a_batch_that_does_not_fit(monkeypatch):
    trainer, fixed = tiny_trainer(micro_batch="auto"), tiny_trainer(micro_batch=1)
    experience, real, tried = experience_for(trainer), trainer.adapter.velocity, []

    def velocity(x_BSC, *rest):
        tried.append(len(x_BSC))
        if len(x_BSC) > 1:
            raise torch.OutOfMemoryError("out of memory")
        return real(x_BSC, *rest)

    monkeypatch.setattr(trainer.adapter, "velocity", velocity)
    made, wanted = trainer.update(experience, range(8)), fixed.update(experience, range(8))
    assert made.rows == wanted.rows == 16
    assert made.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-6)
    assert made.figures["micro_batch"] == 1
    assert max(tried) == 2


@pytest.mark.parametrize("wrong", [0, -4, 2.5, "automatic", True, None])
def test_value_that_is_no_row_count_is_refused_with_a_sentence(wrong):
    with pytest.raises(ValidationError, match="a whole number of rows, at least 1, or auto") as refusal:
        TrainConfig.model_validate({"micro_batch": wrong})
    assert refusal.value.errors()[0]["loc"] == ("micro_batch",)


def test_auto_is_refused_in_deterministic_runs():
    TrainConfig(micro_batch=8).check_deterministic()
    with pytest.raises(
        ConfigError, match=r"deterministic is on but train\.micro_batch is auto.*set train\.micro_batch"
    ):
        TrainConfig(micro_batch="auto").check_deterministic()
