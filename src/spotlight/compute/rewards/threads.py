"""What a reward process does first; imports nothing, because numeric libraries read these variables as they load."""

import os


def use_one_thread() -> None:
    """Reward processes share the cores with training; threads that spin at barriers would starve it."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
