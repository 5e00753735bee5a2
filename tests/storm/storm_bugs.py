"""Bugs planted into shipped classes, each of which the storm of some seed must catch."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from spotlight.sim.storm import StormFailed, run_seed

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
SEEDS = range(60)


class Bugs(dict[str, tuple[Plant, int]]):
    """Bugs by name, each with the seed that is tried first; decorate each with `caught_by`."""

    def caught_by(self, seed: int) -> Callable[[Plant], Plant]:
        """Try this seed first: a storm that catches the bug ends early, one that does not takes half a second."""

        def add(plant: Plant) -> Plant:
            self[plant.__name__] = plant, seed
            return plant

        return add

    def caught(self, name: str, patch: pytest.MonkeyPatch) -> str:
        """Plant one and run the seeds; return what caught it, and fail the test if nothing does."""
        plant, first = self[name]
        plant(patch)
        for seed in (tried := [first, *(seed for seed in SEEDS if seed != first)]):
            try:
                run_seed(seed)
            except StormFailed as failed:
                return str(failed).splitlines()[0]
        pytest.fail(f"{name} survives {len(tried)} seeds: no storm detects it")
