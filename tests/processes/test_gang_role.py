"""Training roles as ranks of a gang: orders to all, replies of each, deaths and the gang after them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from gang_processes import GangRanks
from test_training_role import harness_in

from spotlight.compute.train.config import NftConfig
from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

ALL = range(8)


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(3)
    yield started
    started.end()


class Gang:
    """Roles of some processes over one run folder."""

    def __init__(self, ranks: GangRanks, folder: Path, **build: Any) -> None:
        self.ranks = ranks
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._writer = harness_in(folder, NftConfig(kl_weight=0.05, timesteps_per_sample=2))
        self._build = {"algorithm": "nft", "links": {}, **build}

    def build(self, processes: Sequence[int]) -> None:
        self.ranks.all(processes, "build_role", str(self.folder), **self._build)

    def form(self, processes: Sequence[int]) -> list[Any]:
        """Form the next gang as the controller does; returns the replies."""
        self.ranks.epoch += 1
        epoch, count, store = self.ranks.epoch, len(processes), ""
        if count > 1:
            opened = self.ranks.call(processes[0], "form", m.FormGang(epoch=epoch, rank=0, ranks=count))
            assert isinstance(opened, m.StoreOpened), opened
            assert opened.epoch == epoch
            store = opened.store
        for rank, process in enumerate(processes):
            self.ranks.send(process, "form", m.FormGang(epoch=epoch, rank=rank, ranks=count, store=store))
        return [self.ranks.reply(process) for process in processes]

    def train(self, processes: Sequence[int], step: int, numbers: Sequence[int] = ALL, **fields: Any) -> list[Any]:
        order = self.order(step, numbers, **fields)
        return self.ranks.all(processes, "obey", order)

    def order(self, step: int, numbers: Sequence[int] = ALL, **fields: Any) -> m.Train:
        items = self._writer.items(numbers, iteration=step)
        return m.Train(step=step, iteration=step, items=items, **{"last": True, **fields})

    def weights(self, processes: Sequence[int]) -> list[dict[str, str]]:
        return self.ranks.all(processes, "weights")


def test_ranks_train_their_shares_and_hold_the_same_bits(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    assert gang.form([0, 1]) == [m.GangFormed(epoch=ranks.epoch, steps=0)] * 2
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    for step in range(3):
        first, second = gang.train([0, 1], step)
        assert isinstance(first, m.Stepped), first
        assert isinstance(second, m.Stepped), second
        assert first.digest == second.digest
        assert second.figures == {}
        wanted = single.role.obey(gang.order(step))
        assert isinstance(wanted, m.Stepped)
        assert first.figures == pytest.approx(wanted.figures, rel=1e-3, abs=1e-7)
        assert first.figures["rows"] == 16
        loaded = ranks.all([0, 1], "taken_reads")
        assert [len(names) for names in loaded] == [4, 4]
        assert not set(loaded[0]) & set(loaded[1])
        waits = ranks.all([0, 1], "taken_messages")
        assert waits == [[m.AwaitsRanks(step=step, part=0)]] * 2
    one, other = gang.weights([0, 1])
    assert one == other


def test_parts_of_three_ranks_give_the_step_of_one_process(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1, 2])
    gang.form([0, 1, 2])
    single = harness_in(tmp_path / "run", NftConfig(kl_weight=0.05, timesteps_per_sample=2))
    accumulated = gang.train([0, 1, 2], 0, [0, 1, 2], part=0, samples=8, is_final=False)
    assert accumulated == [m.Accumulated(step=0, part=0)] * 3
    stepped = gang.train([0, 1, 2], 0, [3, 4, 5, 6, 7], part=1, samples=8)
    wanted = single.role.obey(gang.order(0))
    assert isinstance(wanted, m.Stepped)
    assert stepped[0].figures == pytest.approx(wanted.figures, rel=1e-4, abs=1e-8)
    assert len({each.digest for each in stepped}) == 1


def test_only_rank_0_publishes(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    gang.form([0, 1])
    gang.train([0, 1], 0)
    first, second = ranks.all([0, 1], "obey", m.Publish(weights=(WeightsId(Version(1)),)))
    assert isinstance(first, m.PublishedWeights)
    assert second is None


def test_ranks_at_different_steps_are_refused(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run")
    gang.build([0, 1])
    gang.form([0, 1])
    gang.train([0, 1], 0)
    assert gang.form([0]) == [m.GangFormed(epoch=ranks.epoch, steps=1)]
    assert isinstance(gang.train([0], 1)[0], m.Stepped), "a gang of one trains alone"
    assert [reply.steps for reply in gang.form([0, 1])] == [2, 1]
    ahead, behind = gang.train([0, 1], 2)
    assert behind.kind == "Stopped"
    assert ahead.kind == "RankLost"


def test_rows_per_forward_that_ranks_search_end_at_one_size(ranks, tmp_path):
    gang = Gang(ranks, tmp_path / "run", micro_batch="auto")
    gang.build([0, 1])
    gang.form([0, 1])
    for step in range(8):
        first, second = gang.train([0, 1], step)
        assert first.digest == second.digest
    assert first.figures["micro_batch"] >= 1
    assert gang.weights([0]) == gang.weights([1])
