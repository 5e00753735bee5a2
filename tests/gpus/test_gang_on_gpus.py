"""Gangs, crews and FSDP2 over NCCL, one GPU per rank: `make test-gpus`; unverified until it has run somewhere.

The scenarios are those that tests/processes runs over gloo.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gang_equality import LORA, PARTS, WHOLE, alone, assert_equal, together
from gang_processes import GangRanks
from ordered_gang import Gang

from spotlight.compute.parallel.group import DeviceKind
from spotlight.core import messages as m

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
NCCL: dict[str, Any] = {"transport": DeviceKind.NCCL, "limit_s": 30.0}
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Kernels depend on the number of rows, so fp32 agrees to rounding."""
SHARDED = {"parallel": "sharded"}
SAVE = m.Save(step=2, path="checkpoints/step_2")


@contextmanager
def processes(count: int) -> Iterator[GangRanks]:
    """One process per GPU."""
    started = GangRanks(count, on_gpus=True)
    try:
        for process in range(count):
            started.call(process, "use_gpu", process)
        yield started
    finally:
        started.end()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algorithm", ["nft", "flow_grpo"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        LORA,
        {"sequence_ranks": 2, "gradient_checkpointing": True},
        {"parallel": "sharded"},
        {"parallel": "sharded", **LORA},
    ],
    ids=["full", "lora", "sequence", "sharded", "sharded-lora"],
)
def test_gradient_of_two_gpus_is_that_of_one(algorithm, dtype, more):
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": True}
    with processes(1) as one:
        wanted = alone(one, PARTS, **case, **{key: value for key, value in more.items() if key == "lora"})
    with processes(2) as ranks:
        made = together(ranks, 2, PARTS, links=NCCL, **case, **more)
    assert_equal(made, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("more", [LORA, SHARDED], ids=["replicated", "sharded"])
def test_checkpoint_of_two_gpus_resumes_at_one(more, tmp_path: Path):
    with processes(2) as ranks:
        gang = Gang(ranks, tmp_path / "run", links=NCCL, **more)
        gang.build([0, 1])
        gang.form([0, 1])
        for step in range(2):
            first, second = gang.train([0, 1], step)
            assert isinstance(first, m.Stepped), first
            assert first.digest == second.digest
        wanted = gang.weights([0, 1])
        assert wanted[0] == wanted[1]
        ranks.all([0, 1], "taken_messages")
        ranks.all([0, 1], "obey", SAVE)
        assert ranks.all([0, 1], "taken_messages") == [[m.Saved(step=2, path=SAVE.path)], []]
    with processes(1) as ranks:
        gang = Gang(ranks, tmp_path / "run", **more)
        gang.build([0])
        gang.form([0])
        assert ranks.call(0, "obey", m.Restore(step=2, path=SAVE.path)).restored
        assert gang.weights([0]) == [wanted[0]]


def test_survivor_of_a_killed_gpu_forms_the_next_gang_and_sends_its_state(tmp_path: Path):
    with processes(2) as ranks:
        gang = Gang(ranks, tmp_path / "run", links=NCCL)
        gang.build([0, 1])
        gang.form([0, 1])
        gang.train([0, 1], 0)
        (before,) = gang.weights([0])
        order = gang.order(1)
        ranks.send(0, "obey", order)
        ranks.kill(1)
        assert ranks.reply(0).kind == "RankLost"
        ranks.start(1)
        ranks.call(1, "use_gpu", 1)
        gang.build([1])
        assert [reply.steps for reply in gang.form([0, 1])] == [1, 0]
        ranks.all([0, 1], "obey", m.Restore(step=1, path="", source=0))
        assert gang.weights([0, 1]) == [before] * 2
        assert isinstance(gang.train([0, 1], 1)[0], m.Stepped)


def test_crew_over_nccl_that_loses_a_rank_is_reported():
    with processes(2) as ranks:
        ranks.form([0, 1], **NCCL)
        ranks.all([0, 1], "build", algorithm="nft", sequence_ranks=2)
        ranks.all([0, 1], "enter")
        ranks.send(0, "update", WHOLE)
        ranks.kill(1)
        assert ranks.reply(0).kind == "RankLost"
