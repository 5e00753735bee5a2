"""The scenarios of the process tests, which these tests run on GPUs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "processes"))
