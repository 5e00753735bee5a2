"""Makes the helper modules of tests/unit importable from every kind of test, and gives each test process one core."""

import os
import sys
from pathlib import Path

# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent / "unit"))
