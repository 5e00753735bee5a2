"""One thread per test process, bytecode for the interpreters that tests start, and tiny models made here."""

import gc
import importlib
import os
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import settings

# Examples have no time limit: they take as long as the machine is busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
# Before torch is imported: pools of several test processes would spin against each other for the same cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test that names a model of the hub must not fetch gigabytes.
os.environ["HF_HUB_OFFLINE"] = "1"
# Tiny random models are made once per checkout, not in the home folder.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "caches")
# Secrets of runs that listen neither.
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parents[1] / ".pytest_cache" / "state")
# Without bytecode every interpreter that a test starts compiles torch anew, which takes 7 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The modules that tests import make half a million objects that all stay: collections meanwhile take seconds.
gc.disable()
if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    # Imported later anyway: in a fresh clone the second worker compiles these while the first one compiles torch.
    for library in ("sympy", "scipy.stats", "scipy.optimize"):
        importlib.import_module(library)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    # Fewer collections of young objects, most of which the end of a test frees.
    gc.set_threshold(10_000, 20, 10)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _tiny_models_are_made_in_this_process() -> Iterator[None]:
    """A process for it, as the product starts, would import torch and diffusers anew for 6 s."""
    from spotlight.compute.models import fetched
    from spotlight.compute.models.family_registry import Family

    def make(family: Family, folder: Path) -> None:
        from spotlight.compute.models.random_weights import write_tiny

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = write_tiny(family, Path(scratch) / "made")
            if not folder.is_dir():
                made.rename(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetched, "_make_tiny", make)
        yield


@pytest.fixture(scope="session", autouse=True)
def _texts_of_recipes_are_parsed_once() -> Iterator[None]:
    """Tests load the same few recipes thousands of times; each gets its own copy of what YAML says."""
    load = yaml.safe_load
    parsed = cache(load)

    def copied(given: object) -> object:
        return deepcopy(parsed(given)) if isinstance(given, str | bytes) else load(given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "safe_load", copied)
        yield
