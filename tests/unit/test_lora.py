"""Merged adapters: weights that load as the family's own and draw what the adapted model draws."""

import pytest
import torch
from tiny_models import RUN_SEED, tiny_adapter

from spotlight.compute.data import words
from spotlight.compute.models import families
from spotlight.compute.models.families import WORDS
from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.train.config import LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.lora import merged_state, select_trainable
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights import files
from spotlight.compute.weights.digest import digest

LORA = LoraConfig(rank=4, alpha=8.0)


def random_words() -> PixelAdapter:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PixelAdapter(WORDS, WORDS.build().eval())


def moved(parameters, by: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def velocity(adapter: PixelAdapter) -> torch.Tensor:
    size = adapter.native_size
    cond = adapter.collate(adapter.encode([words.prompt_for(word) for word in ("river", "fox")]))
    x = torch.randn(2, *adapter.latent_shape(size), generator=torch.Generator().manual_seed(2))
    return adapter.velocity(x, torch.tensor([1.0, 0.4]), cond, None, 1.0, size)


def test_merged_state_of_a_lora_run_loads_as_its_family_and_draws_the_same(tmp_path):
    base, adapted = random_words(), random_words()
    select_trainable(adapted.transformer, LORA, adapted.lora_targets, RUN_SEED)
    moved(p for p in adapted.transformer.parameters() if p.requires_grad)
    files.write(tmp_path / "w.safetensors", "words", merged_state(adapted.transformer))
    loaded = families.load(str(tmp_path / "w.safetensors"))
    torch.testing.assert_close(velocity(loaded), velocity(adapted), rtol=0, atol=1e-5)
    assert (velocity(loaded) - velocity(base)).abs().max() > 1e-3


def test_merged_state_inside_using_is_that_of_the_set_in_use():
    """EMA differs from theta here, and afterwards the module holds theta again."""
    trainer = Trainer(tiny_adapter(), TrainConfig(lora=LORA), NftConfig(), RUN_SEED)
    module = trainer.adapter.transformer
    at_start = digest(merged_state(module))
    moved(trainer.sets.theta.values())
    theta = digest(merged_state(module))
    with trainer.sets.using(WeightSet.EMA):
        assert digest(merged_state(module)) == at_start
    assert digest(merged_state(module)) == theta != at_start


def test_merged_state_without_adapters_is_the_state_dict():
    transformer = tiny_adapter().transformer
    assert digest(merged_state(transformer)) == digest(transformer.state_dict())


def test_merged_state_of_adapters_at_the_identity_is_the_base():
    adapter = tiny_adapter()
    base = digest(adapter.transformer.state_dict())
    select_trainable(adapter.transformer, LORA, adapter.lora_targets, RUN_SEED)
    assert digest(merged_state(adapter.transformer)) == base


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_merged_state_keeps_a_small_adapter_whatever_the_base_is_stored_in(dtype):
    """A step of 1e-5 on a weight of 0.1 is lost in bf16."""
    adapter = tiny_adapter()
    adapter.transformer.to(dtype)
    before = merged_state(adapter.transformer)
    select_trainable(adapter.transformer, LORA, adapter.lora_targets, RUN_SEED)
    moved((p for n, p in adapter.transformer.named_parameters() if ".lora_B." in n), by=1e-5)
    after = merged_state(adapter.transformer)
    name = "transformer_blocks.0.attn.to_q.weight"
    assert after.keys() == before.keys()
    assert after[name].dtype == torch.float32
    assert not after[name].requires_grad
    assert (after[name] - before[name].float()).ne(0).float().mean() > 0.5
    assert after["proj_out.weight"].dtype == dtype
