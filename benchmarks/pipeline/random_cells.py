"""Cells drawn at random from a grid, beside the chosen ones: no choice of ours can favour a technique.

Every value of a column of the grid is equally likely, and independent of the other columns. A draw is repeated if it
cannot be simulated (more updates than prompts, more trained timesteps than steps, a window wider than its range), if it
is a chosen cell, or if it was drawn before. A longer list with the same seed begins with the shorter one.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.pipeline.cells import Cell, Loss, Machines, Setting

GRID: Mapping[str, Sequence[Any]] = {
    "profile": ("h200-qwen-image-512", "h200-qwen-image-1280"),
    "trainers": (2, 4, 8),
    "rollers_per_trainer": (1, 2, 3),
    "speed": (1.0, 1.0, 1.0, 0.5),
    "prompts": (2, 4, 8, 16, 32),
    "steps": (10, 20, 30, 40, 50),
    "timesteps": (1, 2, 4, 8),
    "updates": (1, 2, 4, 8, 16),
    "loss": tuple(Loss),
}
WINDOW_RANGE = 6
"""Steps that a window of the recipe with Flow-GRPO may lie in."""


def drawn(count: int, seed: int, without: Collection[Cell] = ()) -> list[Cell]:
    """The first `count` cells of this seed, in the order of their draws."""
    chance, found = random.Random(seed), dict.fromkeys(without)
    while len(found) < len(without) + count:
        cell = _draw(chance)
        if is_simulated(cell.setting):
            found.setdefault(cell)
    return list(found)[len(without) :]


def is_simulated(setting: Setting) -> bool:
    widest = WINDOW_RANGE if setting.loss is Loss.FLOW_GRPO else setting.steps
    return setting.updates <= setting.prompts and setting.timesteps <= widest


def _draw(chance: random.Random) -> Cell:
    value = {column: chance.choice(values) for column, values in GRID.items()}
    trainers = value["trainers"]
    machines = Machines(trainers, trainers * value["rollers_per_trainer"], value["speed"])
    setting = Setting(value["prompts"], value["steps"], value["timesteps"], value["updates"], value["loss"])
    return Cell(value["profile"], machines, setting)
