"""Training with sequences split over crews equals training on one process: real processes over gloo."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from gang_equality import LORA, PARTS, TOLERANCE, WHOLE, alone, assert_equal, together
from gang_processes import GangRanks

from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.random_weights import write_tiny


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(4)
    yield started
    started.end()


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(FAMILIES) if name != "qwen-image"]


@pytest.fixture(scope="module", params=["qwen-image", *OTHERS])
def family(request, tmp_path_factory) -> tuple[str, Path]:
    return request.param, write_tiny(FAMILIES[request.param], tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("algorithm", ["nft", "flow_grpo"])
@pytest.mark.parametrize(
    ("count", "crew", "parts", "is_stale", "more"),
    [
        pytest.param(2, 2, WHOLE, False, LORA, marks=pytest.mark.slow),
        (3, 3, PARTS, True, {"gradient_checkpointing": True}),
        (4, 2, PARTS, True, {**LORA, "gradient_checkpointing": True}),
    ],
    ids=["one-crew-lora", "crew-of-three-full-checkpointed", "two-crews-lora-checkpointed"],
)
def test_gradient_of_crews_is_that_of_one_process(ranks, algorithm, dtype, count, crew, parts, is_stale, more):
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": is_stale, **more}
    wanted = alone(ranks, parts, **case)
    made = together(ranks, count, parts, sequence_ranks=crew, **case)
    assert_equal(made, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "more",
    [LORA, pytest.param({"gradient_checkpointing": True}, marks=pytest.mark.slow)],
    ids=["lora", "full-checkpointed"],
)
def test_guided_gradient_of_each_family_is_that_of_one_process(ranks, family, more):
    name, folder = family
    # In double precision, though velocities are fp32: guidance and depth lose some digits of fp32.
    case = {"algorithm": "flow_grpo", "dtype": "float64", "family": name, "folder": str(folder), **more}
    parts = [[0, 1, 2, 3]]
    wanted = alone(ranks, parts, **case)
    assert_equal(together(ranks, 2, parts, sequence_ranks=2, **case), wanted, TOLERANCE["float32"])


def test_rank_of_a_crew_that_dies_in_a_forward_is_named(tmp_path):
    ranks = GangRanks(2)
    try:
        ranks.form([0, 1])
        ranks.all([0, 1], "build", algorithm="nft", sequence_ranks=2)
        ranks.all([0, 1], "enter")
        ranks.send(0, "update", WHOLE)
        ranks.kill(1)
        lost = ranks.reply(0)
        assert (lost.kind, lost.waited_for) == ("RankLost", 1)
        ranks.call(0, "leave")
        ranks.call(0, "update", WHOLE)
    finally:
        ranks.end()
