"""Figures from other measurements of this project, for operations that a profile cannot time.

Invariant: each equals the figure in its cited file (tests/unit/test_profiles.py). Free of torch.
"""

from spotlight.control.profiles import Point, Provenance, Series, Times
from spotlight.control.profiles.timings import BY_BATCH, ONE_FIGURE

REGROUP = (0.07278055000097083, 0.1536908449998009)
"""p50 and p99 seconds from the loss of a rank to the survivors' next step (docs/results/regroup.json)."""
DETECT = (0.020403487998919445, 0.03155560300001525)
FORM = (0.007178239000495523, 0.025434156999835977)
"""p50 and p99 seconds of detecting and forming, the first two parts of a regroup (docs/results/regroup.json)."""
NCCL_FORM = (0.039028679000011834, 0.40267810799997505)
"""Seconds to form one rank's communicator on an H200: median and worst of three (docs/results/newcomer.json)."""
NEIGHBOUR = (0.10854508599999235, 0.14302507700000433)
"""Seconds for 41 GB from a neighbour's device: median and worst of three (docs/results/newcomer.json)."""
COLD_START = (26.878856958000014, 27.611974091000036)
"""Seconds of a worker's imports and 41 GB from a cold disk: median and worst of two (docs/results/cold-start.json)."""
READING_S = 0.016
"""Seconds for one core to read one picture."""


def regroup_of_tiny() -> Times:
    how = "Cited from docs/results/regroup.json: a crew of four on a CPU loses a rank; until the next step."
    return one_figure(Provenance.MEASURED, how, *REGROUP)


def regroup_on_devices() -> Times:
    p50, p99 = (detect + form + nccl for detect, form, nccl in zip(DETECT, FORM, NCCL_FORM, strict=True))
    how = (
        "Detection and forming cited from docs/results/regroup.json (CPU), and an NCCL communicator from "
        "docs/results/newcomer.json (H200, one rank); the survivors' next step is not part of it."
    )
    return one_figure(Provenance.DERIVED, how, p50, p99)


def peer_copy_of_qwen_image() -> Times:
    how = "Cited from docs/results/newcomer.json: 41 GB mapped from a neighbour on the same H200 and copied."
    return one_figure(Provenance.MEASURED, how, *NEIGHBOUR)


def worker_start_of_qwen_image() -> Times:
    how = (
        "Cited from docs/results/cold-start.json: a new process imports everything, and 41 GB come from a cold disk, "
        "which the machine reads ahead."
    )
    return one_figure(Provenance.MEASURED, how, *COLD_START)


def reading() -> Times:
    how = "Cited: the recogniser reads a picture in 16 ms on one core of a 2-core CPU; the detector is not part of it."
    series = Series(provenance=Provenance.MEASURED, how=how, points=(Point(1, 1, READING_S, READING_S),))
    return Times(interpolation=BY_BATCH, series=(series,))


def one_figure(provenance: Provenance, how: str, p50: float, p99: float) -> Times:
    """Times of an operation without batch and degree."""
    series = Series(provenance=provenance, how=how, points=(Point(1, 1, p50, p99),))
    return Times(interpolation=ONE_FIGURE, series=(series,))
