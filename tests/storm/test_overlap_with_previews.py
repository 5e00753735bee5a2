"""Overlap and exploration in one run, in virtual time: previews use the slot time that overlap saves."""

from pathlib import Path

import pytest
from test_simulate import MODEL

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import IterationDone
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.learning import ModelNumerics
from spotlight.sim.simulate import Simulation, simulate, simulated

PREVIEWS = (
    *("iterations=8", "rollout.prompts=16", "rollout.group_size=4", "algorithm.timesteps_per_sample=2"),
    *("explore.solver=ode2", "explore.seeds=16", "explore.steps=5", "explore.overrun=10", "explore.audit_share=0.02"),
    *("explore.candidates=2", "explore.scouts=4", "pipeline.least_groups=8"),
    *("eval.every=100", "eval.prompts=8", "cluster.reserved=4", "cluster.gang=4"),
)
SETTLED = 2
"""Iterations after which speeds are measured."""


def iteration_s(folder: Path, size: int, changes: tuple[str, ...]) -> float:
    """Mean seconds of an iteration with previews, all of which are awaited."""
    profile = Profile.load(f"h200-qwen-image-{size}")
    recipe = "words-large-nft+spotlight-fixed"
    config = simulated(load_config(recipe, [*PREVIEWS, *changes]), profile)
    numerics = ModelNumerics(MODEL, config.seed, config.rollout.steps)
    run = RunFolder(folder / f"{size}-{len(list(folder.iterdir()))}")
    run.path.mkdir()
    prices = PriceTable.load(None)
    simulate(Simulation(config=config, recipe=recipe, profile=profile, numerics=numerics, prices=prices), run)
    ends = [record.at for record in read(run.journal) if isinstance(record.event, IterationDone)]
    return (ends[-1] - ends[SETTLED]) / (len(ends) - 1 - SETTLED)


@pytest.mark.parametrize(("size", "times"), [(512, 1.03), (1280, 1.0)])
def test_overlap_costs_at_most_3_percent_where_previews_fill_every_slot(
    tmp_path: Path, size: int, times: float
) -> None:
    few = ("cluster.spot=8",)
    alone, both = (iteration_s(tmp_path, size, (*few, f"pipeline.gap={gap}")) for gap in (False, True))
    assert both < times * alone


def test_overlap_shortens_iterations_where_previews_leave_room(tmp_path: Path) -> None:
    many = ("cluster.spot=24",)
    alone, both = (iteration_s(tmp_path, 1280, (*many, f"pipeline.gap={gap}")) for gap in (False, True))
    assert both < 0.95 * alone
