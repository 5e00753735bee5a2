"""What training costs a gang: each update is a rank's share in micro-batches, then one optimizer step of all ranks."""

import math

from spotlight.control.forecast.asked import Durations, Fleet, Workload
from spotlight.control.forecast.drawing import shared
from spotlight.control.profiles import Operation


def train_s(work: Workload, fleet: Fleet, times: Durations) -> float:
    """All updates of an iteration, each as a whole, with both changes of role."""
    gradients_s = math.fsum(part_s(samples, work, fleet, times) for samples in work.samples_by_update)
    return switches_s(work, times) + gradients_s + len(work.samples_by_update) * joined_s(fleet, times)


def part_s(samples: int, work: Workload, fleet: Fleet, times: Durations) -> float:
    """Gradients of so many samples, of which each rank has its share."""
    image_timesteps = shared(samples, fleet.gang) * work.timesteps
    return work.runs * _gradient_s(image_timesteps // work.runs, work, times)


def joined_s(fleet: Fleet, times: Durations) -> float:
    """One optimizer step of the whole gang."""
    return times.seconds(Operation.OPTIMIZER_STEP, degree=fleet.gang)


def switches_s(work: Workload, times: Durations) -> float:
    """Into training and back; who never rolls out never changes."""
    return 2 * times.seconds(Operation.ROLE_SWITCH) if work.pipeline.tag else 0.0


def _gradient_s(image_timesteps: int, work: Workload, times: Durations) -> float:
    """One rank's rows, in micro-batches."""
    full, rest = divmod(image_timesteps, work.micro_batch)
    sizes = [*[work.micro_batch] * full, *([rest] if rest else ())]
    rows = [size * work.passes for size in sizes]
    trained_s = math.fsum(times.seconds(Operation.TRAIN_TIMESTEP, batch=batch) for batch in rows)
    return trained_s + work.forwards * math.fsum(times.seconds(Operation.DENOISE_STEP, batch=batch) for batch in rows)
