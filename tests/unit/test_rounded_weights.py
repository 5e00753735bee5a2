"""Previews compute with weights that are rounded to the type of the base; nothing else does."""

from contextlib import contextmanager

import torch
from engine_stories import BASE_DIGEST, admit, bits, finish, made_alone, wanted
from tiny_models import RUN_SEED, tiny_adapter
from torch import nn

from spotlight.compute.rollout.engine import Engine
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.types import Version
from spotlight.core.work import WeightsId, Work


def numbered(version: int) -> WeightsId:
    return WeightsId(Version(version))


def beside_narrow_weights() -> nn.Module:
    """An adapter in fp32 on a base in bf16, as LoRA has them."""
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    module[0].to(torch.bfloat16).requires_grad_(False)
    return module


def test_previews_use_a_set_rounded_to_the_type_of_the_base_weights(tmp_path):
    module, store = beside_narrow_weights(), NodeStore(tmp_path)
    resident = Resident(module, BASE_DIGEST)
    trained = {"1.weight": torch.full((4, 4), 1.0 + 2.0**-12)}
    store.publish(numbered(1), "tiny", trained, BASE_DIGEST)
    resident.load(store.open(numbered(1)))
    with resident.use(numbered(1), is_exact=False):
        assert not resident.is_exact
        assert module[1].weight.dtype == torch.bfloat16
        assert bool((module[1].weight == 1.0).all())
    with resident.use(numbered(1)):
        assert resident.is_exact
        assert torch.equal(module[1].weight, trained["1.weight"])
    assert module[1].weight.dtype == torch.float32


def test_previews_of_the_base_model_are_rounded_as_well_and_leave_it_as_it_was():
    module = beside_narrow_weights()
    before = module[1].weight.detach().clone()
    resident = Resident(module, BASE_DIGEST)
    with resident.use(numbered(0), is_exact=False):
        assert torch.equal(module[1].weight, before.to(torch.bfloat16))
    assert torch.equal(module[1].weight, before)


def test_previews_of_weights_of_one_type_are_exact(tmp_path):
    module, store = beside_narrow_weights().to(torch.float32), NodeStore(tmp_path)
    resident = Resident(module, BASE_DIGEST)
    trained = {"1.weight": torch.full((4, 4), 1.0 + 2.0**-12)}
    store.publish(numbered(1), "tiny", trained, BASE_DIGEST)
    resident.load(store.open(numbered(1)))
    with resident.use(numbered(1), is_exact=False):
        assert torch.equal(module[1].weight, trained["1.weight"])


def test_a_set_that_is_loaded_anew_is_rounded_anew(tmp_path):
    module = beside_narrow_weights()
    resident = Resident(module, BASE_DIGEST)
    for number, value in enumerate((1.0, 2.0)):
        store = NodeStore(tmp_path / str(number))
        store.publish(numbered(1), "tiny", {"1.weight": torch.full((4, 4), value)}, BASE_DIGEST)
        resident.load(store.open(numbered(1)))
        with resident.use(numbered(1), is_exact=False):
            assert bool((module[1].weight == value).all())


class Watched(Resident):
    """Reports that rounding changes the weights, and records how the model was used."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, BASE_DIGEST)
        self.rounds = True
        self.ways: list[bool] = []

    @contextmanager
    def use(self, weights, is_exact=True):
        self.ways.append(is_exact)
        with super().use(weights, is_exact):
            yield


def test_rollouts_share_no_forward_with_previews_and_stay_exact():
    adapter = tiny_adapter()
    resident = Watched(adapter.transformer)
    by = Engine(adapter, resident, RUN_SEED, rows=8, padded=True)
    rollout, preview = wanted(seed=1), wanted(seed=2, work=Work.PREVIEW)
    admit(by, preview, rollout)
    done = finish(by)
    steps = rollout.sample.sampling.steps
    assert resident.ways == [True] * steps + [False] * preview.sample.sampling.steps
    assert bits(done[rollout.id]) == bits(made_alone(rollout))
