"""Orders of a controller to the training roles of a gang's processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gang_processes import GangRanks
from test_training_role import harness_in

from spotlight.compute.train.config import NftConfig
from spotlight.core import messages as m

ALL = range(8)


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
