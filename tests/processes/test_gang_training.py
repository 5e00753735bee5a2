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


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("algorithm", ["nft", "flow_grpo"])
@pytest.mark.parametrize(
    ("count", "speeds", "parts", "is_stale", "more"),
    [
        (2, None, WHOLE, False, LORA),
        (3, None, PARTS, True, LORA),
        (2, [3.0, 1.0], PARTS, True, {}),
        (2, None, PARTS, True, {"clip_fractions": (0.1, 0.9)}),
        (3, [1.0, 20.0, 1.0], PARTS, False, {"batches_over": "samples"}),
    ],
    ids=["two-lora", "three-lora-gap-stale", "uneven-full-gap-stale", "decoupled", "three-uneven-full-gap-samples"],
)
def test_gradient_of_several_ranks_is_that_of_one(ranks, algorithm, dtype, count, speeds, parts, is_stale, more):
    if algorithm == "nft" and "clip_fractions" in more:
        pytest.skip("only Flow-GRPO clips")
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": is_stale, **more}
    wanted = alone(ranks, parts, **case)
    made = together(ranks, count, parts, speeds, **case)
    assert_equal(made, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("is_even", [False, True])
def test_slower_rank_gets_fewer_rows_unless_shares_are_even(is_even):
    ranks = GangRanks(2)
    try:
        ranks.form([0, 1])
        ranks.all([0, 1], "build", algorithm="nft")
        ranks.all([0, 1], "enter", is_even)
        ranks.call(1, "slow_down", 100.0)
        ranks.all([0, 1], "update", WHOLE)
        first, second = ranks.all([0, 1], "share_sizes", 1000)
        assert first == second, "all ranks compute the same shares"
        assert first == [500, 500] if is_even else first[1] < 100
        gradients = [made[0] for made in ranks.all([0, 1], "update", WHOLE)]
        assert (gradients[0] == gradients[1]).all()
    finally:
        ranks.end()


@pytest.mark.parametrize("count", [2, 3])
def test_ratio_of_several_ranks_before_the_first_update_is_exactly_one(ranks, count):
    (made, *_) = together(ranks, count, PARTS, algorithm="unmoved_flow_grpo")
    assert made[1]["ratio_deviation"] == 0.0
    assert made[2] == 16
