"""Digests of the simulated trainer; its replies and refusals are those of tests/conformance/test_training_roles.py."""

import asyncio

import pytest

from spotlight.compute.profiling.pace import Pace
from spotlight.compute.train.training_effects import AddPart
from spotlight.core import messages as m
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, WeightsId, Work
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.numerics import HashNumerics, Numerics
from spotlight.sim.sim_trainer import SimTrainer, obey
from spotlight.sim.storage import SimStorage

PROMPT = Prompt(text="a harbour")
GROUP = 2


def item(number: int) -> m.TrainItem:
    sample = Sample(prompt=PROMPT.id, seed=number, sampling=Sampling(steps=4, size=Size(32, 96)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=number // GROUP, sample=sample)
    return m.TrainItem(request=request, prompt=PROMPT, payload=f"{number}", advantage=float(number), kept=True)


def theta_of(parts: list[list[int]], numerics: Numerics | None = None) -> str:
    """Digest after one step in these parts."""
    storage = SimStorage()
    storage.files |= {f"{number}": b"tensors" for number in range(8)}
    trainer = SimTrainer(storage, "", numerics or HashNumerics())
    for number, part in enumerate(parts):
        samples, is_final = sum(map(len, parts)), number == len(parts) - 1
        items = tuple(map(item, part))
        order = m.Train(step=0, iteration=0, items=items, last=True, part=number, samples=samples, is_final=is_final)
        trainer.add(AddPart(order, trainer.read(order), begins=None if number else samples))
    return trainer.step().digest


def statistical() -> ModelNumerics:
    return ModelNumerics(LearningModel.load("words-nft"), 0, 4)


def test_other_parts_change_the_digest_where_bits_count_and_not_elsewhere():
    whole, parted, turned = [[*range(8)]], [[0, 1, 2, 3], [4, 5, 6, 7]], [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert len({theta_of(parts) for parts in (whole, parted, turned)}) == 3
    assert len({theta_of(parts, statistical()) for parts in (whole, parted, turned)}) == 1


class Writer:
    """A worker that counts the seconds of its orders."""

    def __init__(self) -> None:
        self.seconds = 0.0

    async def take_time(self, seconds: float) -> None:
        self.seconds += seconds

    def crash_if_due(self, point: CrashPoint) -> None:
        pass


@pytest.mark.parametrize(("rank", "seconds"), [(0, 3.0), (1, 0.0)])
def test_only_rank_0_takes_the_time_of_a_publication(rank, seconds):
    trainer, writer = SimTrainer(SimStorage(), "", HashNumerics()), Writer()
    trainer.core.rank = rank
    pace = Pace(step_s=1.0, start_s=1.0, load_s=3.0, train_s=1.0, heartbeat_s=1.0)
    reply = asyncio.run(obey(m.Publish(weights=(WeightsId(Version(0)),)), trainer, pace, writer))
    assert isinstance(reply, m.PublishedWeights) == (rank == 0)
    assert writer.seconds == seconds
