"""One update on several ranks, compared with the update of one process."""

from typing import Any

import numpy as np
import pytest
from gang_processes import GangRanks

WHOLE = [list(range(8))]
PARTS = [[0, 1], [2, 3, 4, 5, 6], [7]]
TOLERANCE = {"float32": 1e-6, "float64": 1e-10}
"""Largest distance of two gradients, relative to the norm."""
LORA = {"lora": {"rank": 2, "alpha": 4.0}}


def alone(ranks: GangRanks, parts: list[list[int]], **case: Any) -> tuple[np.ndarray, dict[str, float], int]:
    assert ranks.call(0, "build", **case) is None
    ranks.call(0, "leave")
    return ranks.call(0, "update", parts)


def together(
    ranks: GangRanks,
    count: int,
    parts: list[list[int]],
    speeds: list[float] | None = None,
    links: dict[str, Any] | None = None,
    **case: Any,
) -> list[tuple[np.ndarray, dict[str, float], int]]:
    members = range(count)
    ranks.form(members, **(links or {}))
    assert ranks.all(members, "build", **case) == [None] * count
    assert ranks.all(members, "enter") == [None] * count
    if speeds is not None:
        ranks.all(members, "set_speeds", speeds)
    return ranks.all(members, "update", parts)


def assert_equal(made: list[tuple[np.ndarray, dict[str, float], int]], wanted: Any, tolerance: float) -> None:
    gradient, figures, rows = wanted
    assert np.linalg.norm(gradient) > 1e-4
    for each in made:
        distance = np.linalg.norm(each[0] - gradient) / np.linalg.norm(gradient)
        assert distance < tolerance
        assert np.array_equal(each[0], made[0][0]), "ranks hold different sums"
        assert each[1] == pytest.approx(figures, rel=1e-4, abs=1e-8)
        assert each[2] == rows
