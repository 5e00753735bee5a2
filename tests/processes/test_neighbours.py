"""A profile measured beside a real busy slot: model, engine and judges."""

import pytest
import torch

from spotlight.compute.profiling.company import Company
from spotlight.compute.profiling.operations import measurements
from spotlight.compute.profiling.stopwatch import Stopwatch
from spotlight.compute.profiling.subject import QUICK_BATCHES, tiny_subject
from spotlight.control.profiles import Operation, Provenance, Times

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_denoising_beside_a_busy_slot_is_measured_with_whole_samples_and_their_judge() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        watch = Stopwatch(device=torch.device("cpu"), repeats=1, patience_s=0.0)
        with Company("words", threads=1, members=1) as company:
            subject = tiny_subject("words", "cpu", QUICK_BATCHES)
            ((_, times),) = measurements(subject, watch, [Operation.DENOISE_STEP], company)
    finally:
        torch.set_num_threads(threads)
    assert isinstance(times, Times)
    measured, derived = times.series
    assert measured.provenance is Provenance.MEASURED
    assert measured.how.endswith("Beside another slot at work.")
    assert "judged" in measured.how
    assert [point.batch for point in measured.points] == [1, 4]
    assert derived.provenance is Provenance.DERIVED
