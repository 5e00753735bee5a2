"""What a reward process does first; imports nothing, because numeric libraries read these variables as they load."""

import os


def prepare() -> None:
    """One thread: reward processes share the cores with training, and threads that spin at barriers would starve it.
    What a reward prints goes to standard error: standard output is the command's own, and may be JSON."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    os.dup2(2, 1)
