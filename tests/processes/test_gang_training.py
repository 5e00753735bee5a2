"""Training on several ranks equals training on one: real processes over gloo."""

from collections.abc import Iterator

import pytest
from gang_equality import LORA, PARTS, TOLERANCE, WHOLE, alone, assert_equal, together
from gang_processes import GangRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(3)
    yield started
    started.end()


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
