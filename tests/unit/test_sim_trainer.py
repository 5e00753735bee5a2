"""The simulated training role takes steps in parts as the real one does, and refuses what that refuses."""

import pytest

from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Request, Work
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.numerics import HashNumerics, Numerics
from spotlight.sim.sim_trainer import SimTrainer
from spotlight.sim.storage import SimStorage

PROMPT = Prompt(text="a harbour")
GROUP = 2


def item(number: int) -> m.TrainItem:
    sample = Sample(prompt=PROMPT.id, seed=number, sampling=Sampling(steps=4, size=Size(32, 96)), version=Version(0))
    request = Request(work=Work.ROLLOUT, iteration=0, group=number // GROUP, sample=sample)
    return m.TrainItem(request=request, prompt=PROMPT, payload=f"{number}", advantage=float(number), kept=True)


def trainer(numerics: Numerics | None = None) -> SimTrainer:
    storage = SimStorage()
    storage.files |= {f"{number}": b"tensors" for number in range(8)}
    return SimTrainer(storage, "", numerics or HashNumerics())


def ordered(numbers: range | list[int], part: int = 0, samples: int | None = None, is_final: bool = True) -> m.Train:
    items = tuple(map(item, numbers))
    return m.Train(step=0, iteration=0, items=items, last=True, part=part, samples=samples, is_final=is_final)


def theta_of(parts: list[list[int]], numerics: Numerics | None = None) -> str:
    role = trainer(numerics)
    for number, part in enumerate(parts[:-1]):
        answer = role.train(ordered(part, number, 8, is_final=False))
        assert answer == m.Accumulated(step=0, part=number)
    answer = role.train(ordered(parts[-1], len(parts) - 1, sum(map(len, parts))))
    assert isinstance(answer, m.Stepped)
    return answer.digest


def statistical() -> ModelNumerics:
    return ModelNumerics(LearningModel.load("words-nft"), 0, 4)


def test_other_parts_change_the_digest_where_bits_count_and_not_elsewhere():
    whole, parted, turned = [[*range(8)]], [[0, 1, 2, 3], [4, 5, 6, 7]], [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert len({theta_of(parts) for parts in (whole, parted, turned)}) == 3
    assert len({theta_of(parts, statistical()) for parts in (whole, parted, turned)}) == 1


def test_part_0_begins_the_step_anew():
    role = trainer()
    role.train(ordered([4, 5], 0, 8, is_final=False))
    role.train(ordered([0, 1], 0, 4, is_final=False))
    answer = role.train(ordered([2, 3], 1, 4))
    assert isinstance(answer, m.Stepped)
    assert answer.digest == theta_of([[0, 1], [2, 3]])


@pytest.mark.parametrize(
    ("second", "problem"),
    [
        (ordered([4, 5], 2, 8), "part 2 of step 0 was ordered after 1 parts"),
        (ordered([1, 2], 1, 8, is_final=False), "a sample that the step already has"),
        (ordered([4, 5], 1), "does not say how many samples"),
        (ordered([4, 5], 1, 6), "says that the step has 6 samples, but it has 4"),
    ],
)
def test_part_that_does_not_fit_is_refused(second, problem):
    role = trainer()
    role.train(ordered([0, 1], 0, 8, is_final=False))
    with pytest.raises(Stopped, match=problem):
        role.train(second)


def test_restored_trainer_drops_the_step_that_was_under_way():
    role = trainer()
    role.train(ordered([0, 1], 0, 4, is_final=False))
    role.restore(m.Restore(step=0, path=""))
    with pytest.raises(Stopped, match="after 0 parts"):
        role.train(ordered([2, 3], 1, 4))
