"""Bugs planted into shipped classes, each of which the storm of some seed must catch."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pytest

from spotlight.sim.storm import StormFailed, run_seed

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


class Bugs(dict[str, Plant]):
    """Bugs by name; decorate each with `add`."""

    def add(self, plant: Plant) -> Plant:
        self[plant.__name__] = plant
        return plant

    def caught(self, name: str, patch: pytest.MonkeyPatch, seeds: Iterable[int]) -> str:
        """Plant one and run the seeds; return what caught it, and fail the test if nothing does."""
        self[name](patch)
        for seed in (tried := list(seeds)):
            try:
                run_seed(seed)
            except StormFailed as failed:
                return str(failed).splitlines()[0]
        pytest.fail(f"{name} survives {len(tried)} seeds: no storm detects it")
