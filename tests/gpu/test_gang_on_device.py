"""Two training ranks that share one GPU and exchange over gloo, through pinned memory."""

from collections.abc import Iterator

import pytest
import torch
from gang_equality import LORA, PARTS, alone, assert_equal, together
from gang_processes import GangRanks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Kernels depend on the number of rows, so fp32 agrees to rounding."""


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(2, on_gpus=True)
    for process in range(2):
        started.call(process, "use_gpu", 0)
    yield started
    started.end()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ["nft", "flow_grpo"])
@pytest.mark.parametrize(
    "more", [{}, LORA, {"sequence_ranks": 2, "gradient_checkpointing": True}], ids=["full", "lora", "sequence"]
)
def test_gradient_of_two_ranks_on_one_gpu_is_that_of_one(ranks, algorithm, dtype, more):
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": True}
    wanted = alone(ranks, PARTS, **case, **{key: value for key, value in more.items() if key == "lora"})
    assert_equal(together(ranks, 2, PARTS, **case, **more), wanted, TOLERANCE[dtype])


def test_sums_of_ranks_on_one_gpu_are_equal_on_both(ranks):
    ranks.form([0, 1])
    first, second = ranks.all([0, 1], "summed", [1000, 70_001], "float32")
    assert first == second
