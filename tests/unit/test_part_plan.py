"""Plans of a part: shares of all ranks, and batches in lockstep where forwards exchange weights."""

import msgspec
import pytest
from tiny_models import PROMPTS, sample_of, tiny_sampling

from spotlight.compute.train.part import SampleGroup, in_lockstep, plan_part
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.control.pipeline.tsp import BatchesOver, Pair, rank_shares
from spotlight.core.types import Version

STALE = [False, False, True, False, False, True]


def groups() -> list[SampleGroup]:
    samples = [
        msgspec.structs.replace(sample_of(PROMPTS[0], seed, tiny_sampling()), version=Version(0 if stale else 1))
        for seed, stale in enumerate(STALE)
    ]
    kept = [True, True, True, False, True, True]
    return [
        SampleGroup(samples[:4], kept[:4], [2] * 4, range(4)),
        SampleGroup(samples[4:], kept[4:], [2] * 2, range(2)),
    ]


def frozen(samples) -> frozenset[WeightSet]:
    return frozenset(WeightSet.BEFORE if sample.version == 0 else WeightSet.OLD for sample in samples)


def shares_of(ranks: int, speeds=None):
    return lambda pairs: rank_shares(pairs, speeds or [1.0] * ranks)


def lockstep(rank: int, ranks: int, rows: int, over: BatchesOver = BatchesOver.PAIRS, speeds=None):
    shares = shares_of(ranks, speeds)
    return in_lockstep(plan_part(groups(), shares, rank), groups(), shares, rank, rows, over, frozen)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 20])
def test_shares_of_all_ranks_are_the_part(ranks):
    plans = [plan_part(groups(), shares_of(ranks), rank) for rank in range(ranks)]
    for number, group in enumerate(groups()):
        assert [pair for plan in plans for pair in plan.pairs[number]] == group.pairs()
    assert {(plan.samples, plan.rows, plan.first) for plan in plans} == {(6, 12, (8, 4))}


def test_rank_needs_the_tensors_of_its_own_samples_alone():
    plans = [plan_part(groups(), shares_of(3), rank) for rank in range(3)]
    assert [[plan.needed(group) for group in (0, 1)] for plan in plans] == [[[0, 1], []], [[2], [0]], [[], [0, 1]]]
    assert plans[1].renumbered().pairs == ((Pair(0, 0), Pair(0, 1)), (Pair(0, 0),))


@pytest.mark.parametrize("over", BatchesOver)
@pytest.mark.parametrize("rows", [1, 2, 3, 50])
@pytest.mark.parametrize(("ranks", "speeds"), [(2, None), (3, None), (2, [1.0, 40.0]), (12, None)])
def test_ranks_in_lockstep_run_equally_many_forwards_of_the_same_sets(ranks, speeds, rows, over):
    plans = [lockstep(rank, ranks, rows, over, speeds) for rank in range(ranks)]
    assert len({tuple(batch.also for batch in plan.batches) for plan in plans}) == 1
    for plan in plans:
        real = [batch for batch in plan.batches if not batch.is_dummy]
        for group in (0, 1):
            trained = [pair for batch in real if batch.group == group for pair in batch.pairs]
            assert sorted(trained, key=str) == sorted(plan.pairs[group], key=str)
        assert all(len(batch.pairs) <= rows for batch in real)
        for batch in plan.batches:
            samples = [groups()[batch.group].samples[pair.sample] for pair in batch.pairs]
            assert frozen(samples) <= batch.also


def test_rank_without_rows_loads_one_sample_for_its_dummy_batches():
    plan = lockstep(0, 2, 2, speeds=[1.0, 1000.0])
    assert plan.pairs == ((), ())
    assert plan.needed(0) == [0]
    assert {batch.is_dummy for batch in plan.renumbered().batches} == {True}
    assert len(plan.batches) == len(lockstep(1, 2, 2, speeds=[1.0, 1000.0]).batches)


def test_part_without_a_kept_sample_has_no_batches():
    dropped = [SampleGroup(group.samples, [False] * 6, group.places, group.chosen) for group in groups()]
    shares = shares_of(2)
    plan = in_lockstep(plan_part(dropped, shares, 1), dropped, shares, 1, 4, BatchesOver.PAIRS, frozen)
    assert plan.batches == ()
    assert plan.rows == 12
