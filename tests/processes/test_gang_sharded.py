"""Training with weights divided between the ranks (FSDP2) equals training on one process.

Every gang has fresh processes, because a default world cannot be formed again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gang_equality import LORA, PARTS, TOLERANCE, WHOLE, alone, assert_equal, together
from gang_processes import GangRanks
from ordered_gang import Gang
from test_training_role import harness_in

from spotlight.compute.train.config import NftConfig
from spotlight.compute.weights.store import NodeStore, read_set
from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

SHARDED = {"parallel": "sharded"}
SAVE = m.Save(step=2, path="checkpoints/step_2")


@contextmanager
def processes(count: int) -> Iterator[GangRanks]:
    started = GangRanks(count)
    try:
        yield started
    finally:
        started.end()


@pytest.mark.parametrize(
    ("algorithm", "dtype", "count", "parts", "is_stale", "more"),
    [
        ("nft", "float64", 3, PARTS, True, {}),
        ("flow_grpo", "float64", 2, PARTS, True, {**LORA, "clip_fractions": (0.1, 0.9)}),
        pytest.param("flow_grpo", "float64", 3, PARTS, True, {"clip_fractions": (0.1, 0.9)}, marks=pytest.mark.slow),
        ("nft", "float32", 2, WHOLE, False, {**LORA, "gradient_checkpointing": True}),
        pytest.param("flow_grpo", "float32", 3, PARTS, True, {}, marks=pytest.mark.slow),
        pytest.param("nft", "float64", 2, PARTS, True, LORA, marks=pytest.mark.slow),
        pytest.param("flow_grpo", "float64", 2, PARTS, True, {"gradient_checkpointing": True}, marks=pytest.mark.slow),
        pytest.param("nft", "float32", 3, PARTS, True, {}, marks=pytest.mark.slow),
    ],
)
def test_gradient_of_sharded_ranks_is_that_of_one_process(algorithm, dtype, count, parts, is_stale, more):
    case = {"algorithm": algorithm, "dtype": dtype, "is_stale": is_stale, **more}
    with processes(1) as one:
        wanted = alone(one, parts, **case)
    with processes(count) as ranks:
        made = together(ranks, count, parts, **case, **SHARDED)
        held = ranks.all(range(count), "held")
    assert all(own < 0.9 * whole for own, whole in held), "every rank holds a share of the weights"
    assert_equal(made, wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow), LORA], ids=["full", "lora"])
def test_sharded_gang_trains_publishes_saves_and_resumes_at_other_counts(more, tmp_path):
    folder = tmp_path / "run"
    with processes(2) as ranks:
        gang = Gang(ranks, folder, **more, **SHARDED)
        gang.build([0, 1])
        gang.form([0, 1])
        for step in range(2):
            first, second = gang.train([0, 1], step)
            assert isinstance(first, m.Stepped), first
            assert first.digest == second.digest
        wanted = gang.weights([0, 1])
        assert wanted[0] == wanted[1]
        published = ranks.all([0, 1], "obey", m.Publish(weights=(WeightsId(Version(2)),)))
        assert isinstance(published[0], m.PublishedWeights), published
        assert published[1] is None
        # After the last update of an iteration the published weights are theta.
        assert published[0].digest == first.digest
        ranks.all([0, 1], "taken_messages")
        ranks.all([0, 1], "obey", SAVE)
        assert ranks.all([0, 1], "taken_messages") == [[m.Saved(step=2, path=SAVE.path)], []]
        assert ranks.call(0, "obey", m.Restore(step=2, path="", source=0)).kind == "Stopped"
        refused = ranks.call(0, "form", m.FormGang(epoch=9, rank=0, ranks=2))
        assert refused.kind == "RestartNeeded"
    assert read_set(NodeStore(folder / "weights")._path(WeightsId(Version(2)))).fingerprint == first.digest
    for count in (1, 3):
        members = range(count)
        with processes(count) as ranks:
            gang = Gang(ranks, folder, **more, **SHARDED)
            gang.build(members)
            gang.form(members)
            restored = ranks.all(members, "obey", m.Restore(step=2, path=SAVE.path))
            assert [reply.restored for reply in restored] == [True] * count
            assert gang.weights(members) == [wanted[0]] * count
            assert isinstance(gang.train(members, 2)[0], m.Stepped)


def test_sharded_steps_are_those_of_one_process(tmp_path):
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    with processes(2) as ranks:
        gang = Gang(ranks, tmp_path / "run", **SHARDED)
        gang.build([0, 1])
        gang.form([0, 1])
        for step in range(3):
            made = gang.train([0, 1], step)[0]
            wanted = single.role.obey(gang.order(step))
            assert isinstance(wanted, m.Stepped)
            assert made.figures == pytest.approx(wanted.figures, rel=1e-3, abs=1e-7)


def test_rank_of_a_sharded_gang_that_dies_is_reported(tmp_path):
    with processes(2) as ranks:
        gang = Gang(ranks, tmp_path / "run", **SHARDED)
        gang.build([0, 1])
        gang.form([0, 1])
        gang.train([0, 1], 0)
        ranks.send(0, "obey", gang.order(1))
        ranks.kill(1)
        assert ranks.reply(0).kind == "RankLost"
