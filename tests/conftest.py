"""Gives each test process one core, and lets the interpreters that tests start keep their bytecode."""

import os
import sys

# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without bytecode each of some hundred interpreters would compile torch anew, which takes it 7 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
