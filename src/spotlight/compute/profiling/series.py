"""Times and series of a profile, from the repeats of an action."""

from collections.abc import Callable, Sequence

import torch

from spotlight.compute.profiling.stopwatch import Stopwatch, point
from spotlight.compute.profiling.subject import ProfiledModel
from spotlight.control.profiles import Operation, Point, Provenance, Series, Times
from spotlight.control.profiles.timings import BY_BATCH, ONE_FIGURE


def by_batch(
    subject: ProfiledModel, watch: Stopwatch, operation: Operation, prepared: Callable[[int], Callable[[], object]]
) -> list[Point]:
    """Time ascending batches, up to the largest that fits the device."""
    points: list[Point] = []
    for batch in subject.batches[operation]:
        try:
            points.append(point(watch.times(prepared(batch)), batch))
        except torch.OutOfMemoryError:
            if not points:
                raise
            break
    return points


def measured(how: str, points: Sequence[Point]) -> Series:
    return Series(provenance=Provenance.MEASURED, how=how, points=tuple(points))


def timed_by_batch(how: str, points: Sequence[Point]) -> Times:
    return Times(interpolation=BY_BATCH, series=(measured(how, points),))


def one_figure(how: str, seconds: Sequence[float]) -> Times:
    return Times(interpolation=ONE_FIGURE, series=(measured(how, [point(seconds)]),))


def adapters_of(subject: ProfiledModel) -> str:
    lora = subject.trainer.train_config.lora
    if lora is None:
        return ""
    tf32 = torch.get_float32_matmul_precision() == "high" and subject.adapter.device.type == "cuda"
    return f", with adapters of rank {lora.rank} beside the weights{' (fp32 matmuls in TF32)' if tf32 else ''}"
