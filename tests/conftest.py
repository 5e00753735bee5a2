"""Makes the helper modules of tests/unit importable from every kind of test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "unit"))
