"""One thread per test process, and bytecode for the interpreters that tests start."""

import os
from pathlib import Path

# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that names a model of the hub must not fetch gigabytes.
os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny random models are made once per checkout, not in the home folder.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "caches")
# Without bytecode every interpreter that a test starts compiles torch anew, which takes 7 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
