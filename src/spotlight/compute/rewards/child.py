"""Initializer of a reward process; imports no library, because numeric libraries read these variables on import."""

import os


def prepare() -> None:
    """Set one thread per library: reward processes share the cores with training, which spinning threads would starve.
    Redirect the reward's prints to standard error: the command's standard output may be JSON."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.dup2(2, 1)
