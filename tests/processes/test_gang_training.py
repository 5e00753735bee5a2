"""Training on several ranks equals training on one: real processes over gloo."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gang_processes import GangRanks

WHOLE = [list(range(8))]
PARTS = [[0, 1], [2, 3, 4, 5, 6], [7]]
TOLERANCE = {"float32": 1e-6, "float64": 1e-10}
LORA = {"lora": {"rank": 2, "alpha": 4.0}}


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(3)
    yield started
    started.end()


def alone(ranks: GangRanks, parts: list[list[int]], **case: Any) -> tuple[np.ndarray, dict[str, float], int]:
    ranks.call(0, "build", **case)
    ranks.call(0, "leave")
    return ranks.call(0, "update", parts)


def together(
    ranks: GangRanks, count: int, parts: list[list[int]], speeds: list[float] | None = None, **case: Any
) -> list[tuple[np.ndarray, dict[str, float], int]]:
    members = range(count)
    ranks.form(members)
    ranks.all(members, "build", **case)
    assert ranks.all(members, "enter") == [None] * count
    if speeds is not None:
        ranks.all(members, "set_speeds", speeds)
    return ranks.all(members, "update", parts)


def assert_equal(made: list[tuple[np.ndarray, dict[str, float], int]], wanted: Any, tolerance: float) -> None:
    gradient, figures, rows = wanted
    assert np.linalg.norm(gradient) > 1e-4
    for each in made:
        assert np.linalg.norm(each[0] - gradient) / np.linalg.norm(gradient) < tolerance
        assert np.array_equal(each[0], made[0][0]), "ranks hold different sums"
        assert each[1] == pytest.approx(figures, rel=1e-4, abs=1e-8)
        assert each[2] == rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ["nft", "flow_grpo"])
@pytest.mark.parametrize(
    ("count", "speeds", "parts", "is_stale", "more"),
    [
        (2, None, WHOLE, False, LORA),
        (3, None, PARTS, True, LORA),
        (2, [3.0, 1.0], PARTS, True, {}),
        (3, [1.0, 20.0, 1.0], PARTS, False, {"batches_over": "samples"}),
    ],
    ids=["two-lora", "three-lora-gap-stale", "uneven-full-gap-stale", "three-uneven-full-gap-samples"],
)
def test_gradient_of_several_ranks_is_that_of_one(ranks, algorithm, dtype, count, speeds, parts, is_stale, more):
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": is_stale, **more}
    wanted = alone(ranks, parts, **case)
    made = together(ranks, count, parts, speeds, **case)
    assert_equal(made, wanted, TOLERANCE[dtype])
