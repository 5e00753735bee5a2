"""Gives each test process one core."""

import os

# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
